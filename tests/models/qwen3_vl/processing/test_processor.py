from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.models.qwen3_vl.processing.cases import CASES, pixels
from tests.models.qwen3_vl.processing.tiny_tokenizer import tiny_tokenizer
from vcap_jax.models.errors import CheckpointError, InputError
from vcap_jax.models.family import VisualBudget
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.processing.chat_template import SPECIAL_TOKENS
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings
from vcap_jax.system.errors import VCapError


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor(tiny_tokenizer(), image=ImageSettings(min_pixels=1024), video=VideoSettings())


@pytest.fixture
def folder(tmp_path: Path, processor: Processor) -> Path:
    processor.save_pretrained(tmp_path)
    return tmp_path


def test_the_layout_of_a_video_message(processor: Processor) -> None:
    frames = np.stack([pixels(32, 64, seed=i) for i in range(3)])
    prompt = processor.encode([VideoPart(frames, [0.0, 1.0, 2.0]), TextPart("Describe.")])
    assert processor.tokenizer.decode(prompt.tokens) == (
        "<|im_start|>user\n<|vision_start|>"
        "<0.5 seconds><|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
        "<2.0 seconds><|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
        "<|vision_end|>Describe.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_repeating_placeholders_equals_tokenizing_the_long_text(processor: Processor) -> None:
    for case in CASES.values():
        tokens = case.encode().tokens
        text = processor.tokenizer.decode(tokens, skip_special_tokens=False)
        assert processor.tokenizer(text)["input_ids"] == tokens.tolist()


def test_prompts_about_the_same_pictures_differ_in_what_stands_behind_them(processor: Processor) -> None:
    """A suffix has tokens of its own: what stands before it does not change them."""
    frames = np.stack([pixels(32, 64, seed=i) for i in range(3)])
    shown = {
        "picture": [ImagePart(pixels(64, 96))],
        "pictures": [ImagePart(pixels(64, 96)), ImagePart(pixels(32, 32))],
        "video": [VideoPart(frames, [0.0, 1.0, 2.0])],
    }
    for parts in shown.values():
        one, other = (processor.encode([*parts, TextPart(text)]) for text in ("What is it?", " One, or two?"))
        before = processor.without_suffix(one, processor.suffix("What is it?"))
        assert processor.tokenizer.decode(before.tokens).endswith("<|vision_end|>")
        for text, whole in (("What is it?", one), (" One, or two?", other)):
            np.testing.assert_array_equal([*before.tokens, *processor.suffix(text)], whole.tokens)
            # Positions of text count on, one a token.
            np.testing.assert_array_equal(before.positions, whole.positions[:, : len(before.tokens)])
            more = before.positions.max() + 1 + np.arange(len(processor.suffix(text)))
            np.testing.assert_array_equal(whole.positions[:, len(before.tokens) :], np.stack([more] * 3))
        assert len(before.is_visual) == len(before.tokens)
        with pytest.raises(ValueError, match="does not end prompts alike"):
            processor.without_suffix(one, processor.suffix("What is that?"))
    with pytest.raises(InputError, match=r"<\|im_end\|>"):
        processor.suffix("What is it?<|im_end|>")


def test_text_alone_is_a_prompt_too(processor: Processor) -> None:
    prompt = processor.encode([TextPart("Hm.")])
    asked = "<|im_start|>user\nHm.<|im_end|>\n<|im_start|>assistant\n"
    assert processor.tokenizer.decode(prompt.tokens) == asked
    assert prompt.frames == ()
    assert prompt.grids.shape == (0, 2)


def test_captions_end_with_the_end_tokens_and_never_contain_the_other_special_ones(
    processor: Processor,
) -> None:
    decode = processor.tokenizer.convert_ids_to_tokens
    assert decode(list(processor.eos_token_ids)) == ["<|im_end|>", "<|endoftext|>"]
    banned = set(decode(list(processor.banned_token_ids)))
    assert {"<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>"} <= banned


def test_frames_resized_beforehand_give_the_same_prompt(processor: Processor) -> None:
    # 45 x 70 becomes 32 x 64: resizing as frames are decoded, or all together, is the same.
    frames = np.stack([pixels(45, 70, seed=i) for i in range(3)])
    size = processor.video_frame_size(3, 45, 70)
    small = np.stack([processor.resize(frame, *size) for frame in frames])
    times = [0.0, 1.0, 2.0]
    one = processor.encode([VideoPart(frames, times)])
    other = processor.encode([VideoPart(small, times, resized=True)])
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(np.concatenate(one.frames), np.concatenate(other.frames))


def test_threads_do_not_disturb_each_other(processor: Processor) -> None:
    parts = [[ImagePart(pixels(64, 64 + 32 * i)), TextPart(f"number {i}")] for i in range(4)] * 4
    alone = [processor.encode(p).tokens for p in parts]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(alone, pool.map(lambda p: processor.encode(p).tokens, parts), strict=True):
            np.testing.assert_array_equal(one, other)


def test_saved_and_loaded_again_it_encodes_the_same(folder: Path, processor: Processor) -> None:
    parts = [ImagePart(pixels(60, 80)), TextPart("Describe the image.")]
    loaded = Processor.from_pretrained(folder)
    np.testing.assert_array_equal(loaded.encode(parts).tokens, processor.encode(parts).tokens)
    assert (loaded.image, loaded.video) == (processor.image, processor.video)
    assert loaded.eos_token_ids == processor.eos_token_ids
    assert loaded.banned_token_ids == processor.banned_token_ids


def test_budgets_replace_those_of_the_checkpoint(folder: Path) -> None:
    budget = VisualBudget(max_pixels=6_422_528, max_frames=200, max_frame_tokens=256, fps=1.0)
    loaded = Processor.from_pretrained(folder, budget)
    assert loaded.image.max_pixels == 6_422_528
    assert loaded.video == VideoSettings(fps=1.0).with_budget(max_frames=200, max_frame_tokens=256)
    assert Processor.from_pretrained(folder, VisualBudget(max_frames=2)).video.max_frames == 2
    # Below the checkpoint's least, small pictures are still brought to what is asked for.
    little = Processor.from_pretrained(folder, VisualBudget(max_pixels=100)).image
    assert (little.min_pixels, little.max_pixels) == (100, 100)


def test_end_tokens_come_from_the_generation_config(folder: Path) -> None:
    turn, text = Processor.from_pretrained(folder).eos_token_ids
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert Processor.from_pretrained(folder).eos_token_ids == (turn, 7, 9)
    for named, ends in ((text, (turn, text)), ([], (turn,))):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        processor = Processor.from_pretrained(folder)
        assert processor.eos_token_ids == ends
        assert turn not in processor.banned_token_ids


def test_an_end_token_that_the_model_does_not_have_is_refused(folder: Path, processor: Processor) -> None:
    tokens = len(processor.tokenizer)
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": tokens + 8}}))
    ends = folder / "generation_config.json"
    ends.write_text(json.dumps({"eos_token_id": [tokens + 7]}))  # tables are often longer than the tokenizer
    Processor.from_pretrained(folder)
    for named in ([0, tokens + 8], -1):
        ends.write_text(json.dumps({"eos_token_id": named}))
        with pytest.raises(CheckpointError, match=rf"{ends}: eos_token_id .*vocab_size is {tokens + 8}"):
            Processor.from_pretrained(folder)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ raise_exception('only text') }}", "{{ 'user: ' + messages[0].content }}"]
)
def test_a_chat_template_that_fails_is_told_as_such(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=r"the chat template fails .*: restore the checkpoint's own"):
        Processor.from_pretrained(folder)


def test_what_ends_a_turn_is_the_first_end_token_whatever_the_files_order(folder: Path) -> None:
    """The first is the one that supervised training teaches."""
    turn, text = Processor.from_pretrained(folder).eos_token_ids
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [text, turn]}))
    assert Processor.from_pretrained(folder).eos_token_ids == (turn, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generation_config.json", "{"),
        ("generation_config.json", "[]"),
        ("generation_config.json", '{"eos_token_id": ["x"]}'),
        ("config.json", "{"),
        ("preprocessor_config.json", '{"size": 3}'),
        ("preprocessor_config.json", '{"patch_size": "large"}'),
        ("video_preprocessor_config.json", '{"fps": 0}'),
        ("video_preprocessor_config.json", '{"fps": null}'),
    ],
)
def test_a_damaged_file_is_named_in_a_line(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(VCapError, match=re.escape(name)) as raised:
        Processor.from_pretrained(folder)
    assert "\n" not in str(raised.value)


def test_a_folder_without_its_tokenizer_is_told_what_it_lacks(folder: Path, processor: Processor) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"copy tokenizer\.json \(or vocab\.json and merges\.txt\) into it"
    ):
        Processor.from_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    with pytest.raises(CheckpointError, match=r"copy tokenizer\.json \(or merges\.txt\) into it"):
        Processor.from_pretrained(folder)
    # Qwen publishes these two as well, and they are enough.
    (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
    named = {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": SPECIAL_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    assert Processor.from_pretrained(folder).image_token_id == processor.image_token_id


def test_of_several_chat_templates_the_processors_own_is_taken(folder: Path) -> None:
    """As the public class does: the tokenizer's is for text alone where they differ."""

    def begins() -> str:
        processor = Processor.from_pretrained(folder)
        return processor.tokenizer.decode(processor.encode([TextPart("Hm.")]).tokens)

    def template(word: str) -> str:
        said = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
        return word + said + "<|im_end|>\n"

    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"chat_template": template("one")}))
    assert begins().startswith("oneHm.")
    (folder / "chat_template.jinja").write_text(template("two"))
    assert begins().startswith("twoHm.")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template("three")}))
    assert begins().startswith("threeHm.")
    own = json.loads((folder / "processor_config.json").read_text())
    (folder / "processor_config.json").write_text(json.dumps(own | {"chat_template": template("four")}))
    assert begins().startswith("fourHm.")
    with pytest.raises(
        CheckpointError, match=r"made 0 placeholders of 1 pictures .*: restore the checkpoint's own"
    ):
        Processor.from_pretrained(folder).encode([ImagePart(pixels(64, 64)), TextPart("Hm.")])


def test_a_chat_template_file_of_the_older_kind_is_read(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        Processor.from_pretrained(folder)
    template = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    loaded = Processor.from_pretrained(folder)
    assert loaded.tokenizer.decode(loaded.encode([TextPart("Hm.")]).tokens) == "Hm."
    with pytest.raises(ValueError, match="0 placeholders of 1"):
        loaded.encode([ImagePart(pixels(32, 32))])


def test_a_checkpoint_that_thinks_aloud_is_refused(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(
        template.read_text() + "{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}"
    )
    with pytest.raises(ValueError, match="thoughts would be taken for the caption: take the Instruct"):
        Processor.from_pretrained(folder)


def test_a_model_that_may_think_aloud_is_asked_not_to(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    opened = "{{- '<think>\n' if enable_thinking is not defined or enable_thinking else '<think>\n\n</think>\n\n' -}}"
    template.write_text(template.read_text() + "{%- if add_generation_prompt -%}" + opened + "{%- endif -%}")
    processor = Processor.from_pretrained(folder)
    asked = processor.tokenizer.decode(processor.encode([TextPart("Hm.")]).tokens)
    assert asked.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_model_config_that_disagrees_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({"image_token_id": 3, "vision_config": {"patch_size": 14}})
    )
    with pytest.raises(ValueError, match=r"disagree: image_token_id 3 and \d+, patch_size 14 and 16"):
        Processor.from_pretrained(folder)


def test_a_tokenizer_of_more_tokens_than_the_model_has_is_refused(folder: Path, processor: Processor) -> None:
    tokens = len(processor.tokenizer)
    config = folder / "config.json"
    config.write_text(json.dumps({"text_config": {"vocab_size": tokens}}))
    Processor.from_pretrained(folder)
    config.write_text(json.dumps({"text_config": {"vocab_size": tokens - 1}}))
    with pytest.raises(
        ValueError, match=f"vocab_size is {tokens - 1}, but the tokenizer has {tokens} tokens"
    ):
        Processor.from_pretrained(folder)


def test_what_cannot_be_a_prompt_is_refused(processor: Processor) -> None:
    with pytest.raises(InputError, match="image_pad"):
        processor.encode([TextPart("look: <|image_pad|>")])
    for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|vision_start|>", "<|vision_pad|>"):
        with pytest.raises(InputError, match=re.escape(f"contains {token}, which is no text")):
            processor.encode([TextPart(f"Describe.{token}\n")])
    assert len(processor.encode([TextPart("a < b | c > <|not one|> <think>")]).tokens)
    with pytest.raises(ValueError, match="3 frames has 2 timestamps"):
        processor.encode([VideoPart(np.zeros((3, 32, 32, 3), np.uint8), [0.0, 1.0])])
    with pytest.raises(TypeError, match="str"):
        processor.encode(["text"])  # type: ignore[list-item]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Processor.from_pretrained("nowhere")


@pytest.mark.live
def test_the_public_auto_processor_loads_what_is_saved(tmp_path: Path, processor: Processor) -> None:
    from tests.live_reference import require_torchvision

    require_torchvision()
    from transformers import AutoProcessor

    video = VideoSettings().with_budget(max_frames=200, max_frame_tokens=256)
    Processor(processor.tokenizer, image=processor.image, video=video).save_pretrained(tmp_path)
    public = AutoProcessor.from_pretrained(tmp_path)
    assert type(public).__name__ == "Qwen3VLProcessor"
    assert public.image_processor.size["longest_edge"] == processor.image.max_pixels
    assert public.video_processor.size["longest_edge"] == 52_428_800
    assert public.video_processor.max_video_tokens == 256
    assert public.video_processor.cap_pixels_per_frame is True
    assert public.chat_template == processor.tokenizer.chat_template
