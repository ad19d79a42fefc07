"""What the caches of a real vLLM judge save: groups of photographs and clips, with and without a lead request.

    python gpu_judge/serve.py --backend vllm --model MODEL --modality both --port 8000 ...
    python benchmarks/judge_client.py --url http://127.0.0.1:8000 --image a.png b.jpg --video clip.mp4 --out caches.json

For every group the judge is asked about 8 captions. "Eligible" are the prompt tokens that candidates 2..8 share
with the first: picture or frames, instruction, reference. The table gives the share of them that the prefix cache
held, as the server's answers tell, and the server's own counters beside it. Any answer counts, whatever a random
judge scores.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from vcap_jax.data.images import decode_image
from vcap_jax.data.judge_media import (
    EncodedMedia,
    EncodedPicture,
    JudgeMediaSettings,
    VideoSource,
    encode_picture,
)
from vcap_jax.data.videos import choose_frames, index_video, read_frames
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings
from vcap_jax.reward.config import JudgeConfig, LocalConfig, RewardConfig
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.prompts import fill_instruction
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import JudgementKey, read_judgements
from vcap_jax.reward.templates import InstructionName, load_instruction

CANDIDATES = 8
_REFERENCE = "A witness saw something round in front of something flat, and a colour that may have been red."
_COUNTERS = re.compile(
    r"^vllm:((?:prefix|mm)_cache_(?:queries|hits))_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE
)


def new_mark() -> np.ndarray:
    """uint8 [64, 64, 1], 8 by 8 squares that are black or white by chance: one of 2^64."""
    squares = np.random.default_rng().integers(0, 2, (8, 8, 1), np.uint8)
    return 255 * squares.repeat(8, axis=0).repeat(8, axis=1)


def marked(pixels: np.ndarray, mark: np.ndarray) -> np.ndarray:
    """The picture with a mark in its corner: no server has seen it before."""
    pixels = pixels.copy()
    height, width = pixels.shape[:2]
    pixels[:64, :64] = mark[:height, :width]
    return pixels


def image_media(path: Path, settings: JudgeMediaSettings, mark: np.ndarray) -> EncodedMedia:
    """A photograph as a run would send it."""
    picture = encode_picture(marked(decode_image(path), mark), settings)
    return EncodedMedia(modality="image", duration=0.0, pictures=(picture,))


def video_media(
    path: Path, settings: JudgeMediaSettings, frames: VideoSettings, mark: np.ndarray
) -> EncodedMedia:
    """A clip as a run would send it."""
    index = index_video(path)
    indices = choose_frames(index, frames).tolist()
    pictures: list[EncodedPicture] = [
        encode_picture(marked(pixels, mark), settings, seconds=index.times[i], index=i)
        for i, pixels in zip(indices, read_frames(index, indices), strict=True)
    ]
    source = VideoSource(frames=len(index), fps=index.fps if index.constant_rate else None)
    return EncodedMedia(modality="video", duration=index.duration, pictures=tuple(pictures), source=source)


def captions(media: EncodedMedia, run: str) -> tuple[str, ...]:
    """Candidates that differ in their first words."""
    texts = [
        f"Variant {run} {k}: the picture shows {k + 2} things, one of them large." for k in range(CANDIDATES)
    ]
    if media.modality == "image":
        return tuple(texts)
    half = media.duration / 2
    return tuple(
        f"[0.0 - {half:.1f}] {t}\n[{half:.1f} - {media.duration:.1f}] More.\nSummary: {t}" for t in texts
    )


def counters(url: str) -> dict[str, float]:
    """The server's cache counters; empty where it has no /metrics."""
    try:
        with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as answer:
            found = _COUNTERS.findall(answer.read().decode())
    except OSError:
        return {}
    totals: dict[str, float] = {}
    for name, value in found:
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def own_tokens(url: str, key: JudgementKey) -> int:
    """Tokens of a prompt from the candidate on, by the server's tokenizer: what no other request shares."""
    # What is stored was asked by the reward, whose passes have these names.
    instruction = load_instruction(cast(InstructionName, key.instruction))
    text = fill_instruction(instruction, reference=key.reference, candidate=key.candidate)
    begin = f"<{instruction.spec.candidate[1]}>\n"
    own = text[text.index(begin) + len(begin) :] + "<|im_end|>\n<|im_start|>assistant\n"
    body = json.dumps({"model": key.model, "prompt": own, "add_special_tokens": False}).encode()
    request = urllib.request.Request(
        f"{url.removesuffix('/v1')}/tokenize", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["count"])


def measure(judge: JudgeConfig, media: dict[str, EncodedMedia], run: str) -> dict[str, Any]:
    """Scores one group per medium, all at once, in a store of its own; what the server says it cost."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "judgements.sqlite"
        reward = RewardConfig(local=LocalConfig(min_overlap=0.0))
        before, began = [counters(url) for url in judge.urls], time.perf_counter()
        with RewardSession(reward, replace(judge, store=str(store)), seed=0) as session:
            session.wait_until_ready()
            futures = [
                session.submit(
                    GroupForReward(
                        sample_id=name,
                        step=0,
                        index=index,
                        media=m,
                        reference=_REFERENCE + run,
                        captions=captions(m, run),
                    )
                )
                for index, (name, m) in enumerate(media.items())
            ]
            scores = [future.result() for future in futures]
            statistics = session.statistics()
        seconds = time.perf_counter() - began
        after = [counters(url) for url in judge.urls]
        passes: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for key, judgement in read_judgements(store):
            usage = judgement.usage
            eligible = usage.prompt_tokens - own_tokens(judge.urls[0], key)
            passes.setdefault((key.media, key.instruction), []).append((usage.cached_tokens, eligible))
    # The first of each pass is the one that found least.
    rest = [pair for group in passes.values() for pair in sorted(group)[1:]]
    cached, eligible = sum(c for c, _ in rest), sum(e for _, e in rest)
    return {
        "seconds": seconds,
        "masked": sum(reward is None for s in scores for reward in s.rewards),
        "requests": statistics.requests,
        "retries": statistics.retries,
        "eligible_tokens": eligible,
        "cached_share_of_eligible": cached / max(eligible, 1),
        "media_sent": statistics.media_sent,
        "media_named": statistics.media_named,
        "media_resent": statistics.media_resent,
        "server": {
            name: sum(b.get(name, 0.0) - a.get(name, 0.0) for a, b in zip(before, after, strict=True))
            for name in sorted({n for b in after for n in b})
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", action="append", required=True, help="of a judge; may be given several times"
    )
    parser.add_argument("--image", type=Path, nargs="*", default=[])
    parser.add_argument("--video", type=Path, nargs="*", default=[])
    parser.add_argument("--max-edge", type=int, default=512, help="longer side of the pictures sent")
    parser.add_argument("--max-frames", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--video-input", choices=("auto", "video", "frames"), default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = JudgeMediaSettings(max_edge=options.max_edge)
    frames = VideoSettings(max_frames=options.max_frames)
    results = {}
    for lead in (True, False):
        # Nothing may be left in the caches from the measurement before, or from another call of this command.
        mark = new_mark()
        media = {str(path): image_media(path, settings, mark) for path in options.image}
        media |= {str(path): video_media(path, settings, frames, mark) for path in options.video}
        judge = JudgeConfig(
            urls=tuple(options.url),
            lead_request=lead,
            max_tokens=options.max_tokens,
            max_analysis_chars=60,
            deadline_s=600,
            max_tries=2,
            video_input=options.video_input,
        )
        results[f"lead_request={lead}"] = measure(judge, media, f" Take {time.time_ns()}.")
        print(f"lead_request={lead}:", json.dumps(results[f"lead_request={lead}"], indent=1), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
