from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.data.media_files import decode_video, write_video
from tests.models.qwen3_vl.processing.cases import pixels
from tests.models.qwen3_vl.processing.tiny_tokenizer import tiny_tokenizer
from tests.processes_in_threads import in_threads
from vcap_jax.data import pipeline, storage
from vcap_jax.data.batching import common_sizes
from vcap_jax.data.errors import MediaError, NoUsableSamplesError, StorageError
from vcap_jax.data.examples import Example, example_loader, media_loader
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.data.pipeline import BadSample, GroupBatch, GroupIterator, PipelineSettings
from vcap_jax.data.storage import look
from vcap_jax.data.videos import EvenFrames
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.processing import Processor, collate
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings
from vcap_jax.parallel.processes import Processes

NOTHING = np.zeros(0, np.int32)
PROMPT = EncodedPrompt(
    NOTHING, np.zeros((3, 0), np.int32), (), np.zeros((0, 2), np.int32), NOTHING.astype(bool)
)
MEDIA = EncodedMedia(modality="image", duration=0.0, pictures=())


def samples(count: int) -> list[Sample]:
    return [Sample(id=str(i), images=(Path(f"{i}.png"),)) for i in range(count)]


def load(sample: Sample) -> Example:
    """Every third sample is bad; slower ones overtake each other in the threads."""
    time.sleep(0.001 * (int(sample.id) * 7 % 3))
    if int(sample.id) % 3 == 1:
        raise MediaError(f"{sample.id}.png: broken")
    return good(sample)


def good(sample: Sample) -> Example:
    return Example(sample=sample, request="", prompt=PROMPT, media=MEDIA)


def ids(batch: GroupBatch) -> tuple[list[str], list[str]]:
    return [e.sample.id for e in batch.examples], [bad.id for bad in batch.skipped]


def test_an_epoch_has_every_good_sample_once_and_names_every_bad_one() -> None:
    told: list[BadSample] = []
    iterator = GroupIterator(
        samples(20), load, PipelineSettings(batch_groups=4, epochs=1, threads=3), on_skip=told.append
    )
    batches = list(iterator)
    assert [len(b.examples) for b in batches] == [4, 4, 4, 1]
    good = [e.sample.id for b in batches for e in b.examples]
    assert sorted(good, key=int) == [str(i) for i in range(20) if i % 3 != 1]
    assert good != sorted(good, key=int)
    bad = [str(i) for i in range(20) if i % 3 == 1]
    assert sorted((b.id for b in told), key=int) == bad
    assert told[0].reason == f"{told[0].id}.png: broken"
    # What is skipped after the last group of the last batch belongs to no batch, but is counted.
    assert iterator.skipped_total == len(bad)


def test_epochs_differ_in_order_and_seeds_too() -> None:
    settings = PipelineSettings(batch_groups=13, epochs=2)
    first, second = (ids(b)[0] for b in GroupIterator(samples(20), load, settings))
    assert sorted(first) == sorted(second)
    assert first != second
    other = PipelineSettings(batch_groups=13, epochs=2, seed=1)
    assert ids(next(GroupIterator(samples(20), load, other)))[0] != first
    plain = PipelineSettings(batch_groups=13, epochs=1, shuffle=False)
    assert ids(next(GroupIterator(samples(20), load, plain)))[0] == sorted(first, key=int)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_resumed_iterator_goes_on_exactly(after: int) -> None:
    settings = PipelineSettings(batch_groups=3, threads=3, prefetch=7)
    alone = GroupIterator(samples(20), load, settings)
    for _ in range(after):
        next(alone)
    state = json.loads(json.dumps(alone.get_state()))
    expected = [ids(next(alone)) for _ in range(10)]
    resumed = GroupIterator(samples(20), load, settings)
    resumed.set_state(state)
    assert [ids(next(resumed)) for _ in range(10)] == expected
    assert resumed.skipped_total == alone.skipped_total
    assert resumed.get_state() == alone.get_state()
    alone.close()
    resumed.close()


def test_a_state_of_other_data_is_refused() -> None:
    state = GroupIterator(samples(20), load, PipelineSettings()).get_state()
    for other in (
        GroupIterator(samples(21), load, PipelineSettings()),
        GroupIterator(samples(20), load, PipelineSettings(seed=1)),
    ):
        with pytest.raises(ValueError, match="another manifest"):
            other.set_state(state)


def batches_of_processes(
    count: int, steps: int, settings: PipelineSettings, state: dict | None = None
) -> tuple[list[tuple[list[str], list[str]]], dict]:
    """Batches as all processes together have them, ids in the order of their places; and the state after them."""

    def work(processes: Processes) -> tuple[list[tuple[dict[int, str], list[str]]], dict]:
        iterator = GroupIterator(samples(20), load, settings, processes=processes)
        if state is not None:
            iterator.set_state(state)
        found = []
        for _ in range(steps):
            batch = next(iterator)
            placed = zip(batch.indices, batch.examples, strict=True)
            found.append(({place: e.sample.id for place, e in placed}, [bad.id for bad in batch.skipped]))
        iterator.close()
        return found, iterator.get_state()

    results = in_threads(count, work)
    batches = []
    for step in range(steps):
        shares = [found[step] for found, _ in results]
        assert len({len(places) for places, _ in shares}) == 1, (
            "every process has as many groups as the others"
        )
        assert all(skipped == shares[0][1] for _, skipped in shares)
        places = {place: name for share, _ in shares for place, name in share.items()}
        assert sorted(places) == list(range(settings.batch_groups))
        batches.append(([places[place] for place in sorted(places)], shares[0][1]))
    assert all(state == results[0][1] for _, state in results)
    return batches, results[0][1]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_batch_is_the_same_whatever_the_number_of_processes(count: int) -> None:
    settings = PipelineSettings(batch_groups=6, threads=2, prefetch=3)
    alone, state = batches_of_processes(1, 9, settings)
    assert any(skipped for _, skipped in alone)
    assert batches_of_processes(count, 9, settings) == (alone, state)


def test_a_run_goes_on_with_another_number_of_processes() -> None:
    settings = PipelineSettings(batch_groups=6, threads=2, prefetch=3)
    alone, end = batches_of_processes(1, 9, settings)
    first, state = batches_of_processes(2, 4, settings)
    second, state = batches_of_processes(3, 3, settings, json.loads(json.dumps(state)))
    third, state = batches_of_processes(1, 2, settings, state)
    assert (first + second + third, state) == (alone, end)


def test_processes_that_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="4 groups cannot be shared out evenly over 3"):
        GroupIterator(samples(3), load, PipelineSettings(batch_groups=4), processes=Processes(0, 3))
    with pytest.raises(ValueError, match="epochs to 0"):
        GroupIterator(samples(3), load, PipelineSettings(batch_groups=6, epochs=1), processes=Processes(0, 3))


def test_a_bad_sample_is_refused_by_all_processes() -> None:
    settings = PipelineSettings(batch_groups=6, on_bad_sample="refuse")

    def work(processes: Processes) -> str:
        with pytest.raises(MediaError) as raised:
            list(GroupIterator(samples(20), load, settings, processes=processes))
        return str(raised.value)

    messages = in_threads(3, work)
    assert len(set(messages)) == 1
    assert "broken" in messages[0]


def test_a_bad_sample_can_be_refused() -> None:
    iterator = GroupIterator(samples(4), load, PipelineSettings(shuffle=False, on_bad_sample="refuse"))
    with pytest.raises(MediaError, match=r"sample 1: 1\.png: broken"):
        next(iterator)


def broken(sample: Sample) -> Example:
    raise MediaError(f"{sample.id}.png: broken")


def test_nothing_but_bad_samples_is_an_error_not_an_endless_loop() -> None:
    iterator = GroupIterator(samples(30), broken, PipelineSettings())
    with pytest.raises(NoUsableSamplesError, match=r"none of the 30 samples.*png: broken"):
        next(iterator)
    assert iterator.skipped_total == 30


def test_a_pass_may_find_nothing_but_bad_samples() -> None:
    """They may be a process's share, or what an interrupted pass had left."""
    told: list[BadSample] = []
    assert list(GroupIterator(samples(5), broken, PipelineSettings(epochs=1), on_skip=told.append)) == []
    assert {bad.id for bad in told} == {sample.id for sample in samples(5)}


def test_the_same_bad_samples_around_the_end_of_an_epoch_are_not_all_samples() -> None:
    """Of three samples one is good. It may come first in an epoch and last in the next: four bad ones in a row."""

    def mostly_broken(sample: Sample) -> Example:
        return load(sample) if sample.id == "0" else broken(sample)

    iterator = GroupIterator(samples(3), mostly_broken, PipelineSettings(batch_groups=1))
    found = [next(iterator) for _ in range(60)]
    assert {example.sample.id for batch in found for example in batch.examples} == {"0"}
    assert max(len(batch.skipped) for batch in found) == 4


def test_bad_samples_with_good_ones_between_them_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million samples a thousandth may be bad, and a run goes through them all."""
    monkeypatch.setattr(pipeline, "_FRUITLESS", 3)
    iterator = GroupIterator(samples(12), load, PipelineSettings(batch_groups=1, shuffle=False))
    assert [ids(next(iterator))[0] for _ in range(16)][-1] == ["11"]
    assert iterator.skipped_total == 8


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept between tries, and is not slept here."""
    slept = list[float]()
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=slept.append))
    return slept


def test_a_sample_whose_storage_does_not_answer_is_tried_again(pauses: list[float]) -> None:
    failures = iter([StorageError("5.png: away")] * 4)

    def sometimes_away(sample: Sample) -> Example:
        if sample.id == "5" and (failure := next(failures, None)) is not None:
            raise failure
        return good(sample)

    settings = PipelineSettings(batch_groups=8, shuffle=False)
    batch = next(GroupIterator(samples(8), sometimes_away, settings))
    assert ids(batch) == ([str(i) for i in range(8)], [])
    assert pauses == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("count", [1, 2])
def test_storage_that_stays_away_ends_all_processes_and_costs_no_sample(
    pauses: list[float], count: int
) -> None:
    gone = threading.Event()

    def load_while_there(sample: Sample) -> Example:
        if gone.is_set() and sample.id == "13":
            raise StorageError("13.png: Stale file handle: its storage does not answer")
        return good(sample)

    settings = PipelineSettings(batch_groups=8, shuffle=False, prefetch=1, threads=1)

    def work(processes: Processes) -> list[list[str]]:
        iterator = GroupIterator(samples(24), load_while_there, settings, processes=processes)
        found = [ids(next(iterator))[0]]
        place = iterator.get_state()
        processes.all_gather_objects("the storage goes", gone.set())
        with pytest.raises(StorageError, match=r"13\.png: Stale file handle.* not within 30 s"):
            next(iterator)
        assert iterator.get_state() == place
        processes.all_gather_objects("the storage is back", gone.clear())
        return [*found, ids(next(iterator))[0], ids(next(iterator))[0]]

    shares = in_threads(count, work)
    for batch in range(3):
        together = sorted((name for share in shares for name in share[batch]), key=int)
        assert together == [str(i) for i in range(8 * batch, 8 * batch + 8)]


def test_files_that_all_seem_gone_are_given_up_before_the_epoch_is_used_up() -> None:
    """Storage that was unmounted looks like that, and thousands of samples are passed in a second."""
    gone = threading.Event()

    def load_while_there(sample: Sample) -> Example:
        return broken(sample) if gone.is_set() else good(sample)

    settings = PipelineSettings(batch_groups=4, shuffle=False, prefetch=1, threads=1)
    iterator = GroupIterator(samples(5000), load_while_there, settings)
    next(iterator)
    place = iterator.get_state()["position"]
    gone.set()
    with pytest.raises(
        NoUsableSamplesError, match=r"^1000 samples in a row cannot be used.*storage was away"
    ):
        next(iterator)
    assert iterator.get_state()["position"] == place
    assert iterator.skipped_total == 1000


def test_a_folder_that_is_no_longer_mounted_costs_no_sample(pauses: list[float], tmp_path: Path) -> None:
    """Also in a single pass over few samples, as where references are written: none of them would get any. A file that
    was never there, or was taken away alone, is the manifest's fault."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    files = [mounted / f"{i}.png" for i in range(6)]
    for i in (0, 1, 3, 4, 5):
        files[i].touch()

    def read(sample: Sample) -> Example:
        look(sample.images[0])
        if sample.id == "4":
            raise MediaError("4.png: broken")
        return good(sample)

    numbered = [Sample(id=str(i), images=(file,)) for i, file in enumerate(files)]
    settings = PipelineSettings(batch_groups=1, shuffle=False, epochs=1, threads=1, prefetch=1)

    def beginning() -> GroupIterator[Example]:
        iterator = GroupIterator(numbered, read, settings)
        assert ids(next(iterator)) == (["0"], [])
        assert ids(next(iterator)) == (["1"], [])
        assert ids(next(iterator)) == (["3"], ["2"])
        return iterator

    assert [ids(batch) for batch in beginning()] == [(["5"], ["4"])]
    assert pauses == []
    iterator = beginning()
    iterator.close()  # what was read ahead
    mounted.rename(tmp_path / "away")
    mounted.mkdir()
    with pytest.raises(StorageError, match=r"4\.png: no such file, and .*png, which was read before"):
        next(iterator)
    assert sum(pauses) >= 30  # also what is read ahead is tried again


def test_what_a_process_has_read_ahead_is_used_whatever_samples_are_bad() -> None:
    settings = PipelineSettings(batch_groups=6, shuffle=False, threads=2, prefetch=8)
    loaded = list[str]()

    def counted(sample: Sample) -> Example:
        loaded.append(sample.id)
        return load(sample)

    def work(processes: Processes) -> int:
        iterator = GroupIterator(samples(400), counted, settings, processes=processes)
        for _ in range(20):
            next(iterator)
        place = iterator.get_state()["position"]
        iterator.close()
        assert isinstance(place, int)
        return place

    (position, _, _) = in_threads(3, work)
    bad = position // 3
    # Each once, those that another process needed in place of a bad one twice, and what is still read ahead.
    assert len(loaded) <= position + bad + 3 * (settings.prefetch + settings.threads)


def test_other_errors_are_not_taken_for_bad_samples() -> None:
    def buggy(sample: Sample) -> Example:
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        next(GroupIterator(samples(3), buggy, PipelineSettings()))


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        GroupIterator([], load, PipelineSettings())


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    Image.fromarray(pixels(50, 70)).save(tmp_path / "photo.jpg")
    Image.fromarray(pixels(400, 90)).convert("L").save(tmp_path / "grey.png")
    Image.fromarray(pixels(1, 300)).save(tmp_path / "thread.png")
    write_video(tmp_path / "clip.mp4", 21, fps=10)
    (tmp_path / "cut.png").write_bytes((tmp_path / "grey.png").read_bytes()[:300])
    write_video(tmp_path / "none.mp4", 0)
    rows = [
        {"id": "photo", "image": "photo.jpg"},
        {"id": "pair", "images": ["photo.jpg", "grey.png"], "prompt": "Compare."},
        {"id": "clip", "video": "clip.mp4"},
        {"id": "thread", "image": "thread.png"},
        {"id": "cut", "image": "cut.png"},
        {"id": "none", "video": "none.mp4"},
        {"id": "gone", "image": "gone.png"},
        {"id": "long", "image": "photo.jpg", "prompt": "word " * 500},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_from_files_to_a_batch(manifest: Path) -> None:
    processor = Processor(
        tiny_tokenizer(),
        image=ImageSettings(min_pixels=1024, max_pixels=16_384),
        video=VideoSettings(fps=4.0).with_budget(max_frames=5, max_frame_tokens=1),
    )
    buckets = Buckets(tokens=(512,), frames=(8,), patches=(64,))
    loader = example_loader(processor, image_prompt="Image?", video_prompt="Video?", buckets=buckets)
    iterator = GroupIterator(read_manifest(manifest), loader, PipelineSettings(epochs=1, shuffle=False))
    (batch,) = list(iterator)
    assert [e.sample.id for e in batch.examples] == ["photo", "pair", "clip"]
    reasons = {bad.id: bad.reason for bad in batch.skipped}
    assert list(reasons) == ["thread", "cut", "none", "gone", "long"]
    for sample_id, words in {
        "thread": "one side is 300.0 times the other",
        "cut": "cut.png",
        "none": "none.mp4",
        "gone": "gone.png",
        "long": "sample long has",
    }.items():
        assert words in reasons[sample_id]
    assert collate([e.prompt for e in batch.examples], buckets, 2).vision is not None

    pair, clip = batch.examples[1], batch.examples[2]
    assert processor.tokenizer.decode(pair.prompt.tokens).count("<|vision_start|>") == 2
    assert "Compare." in processor.tokenizer.decode(pair.prompt.tokens)
    assert [p.mime for p in pair.media.pictures] == ["image/png", "image/jpeg"]
    # 21 frames at 10 a second, sampled at 4 a second, at most 5: 0, 5, 10, 15, 20.
    assert [p.seconds for p in clip.media.pictures] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert clip.media.duration == pytest.approx(2.1)
    text = processor.tokenizer.decode(clip.prompt.tokens)
    assert all(f"<{t} seconds>" in text for t in ("0.2", "1.2", "2.0"))
    assert "Video?" in text
    assert clip.prompt.grids.tolist() == [[2, 2]] * 3


def test_streaming_a_video_equals_encoding_it_whole(manifest: Path) -> None:
    processor = Processor(tiny_tokenizer(), video=VideoSettings(fps=4.0, min_pixels=100_000))
    loader = example_loader(processor, image_prompt="", video_prompt="Video?")
    streamed = loader(read_manifest(manifest)[2]).prompt
    video = decode_video(manifest.parent / "clip.mp4", processor.video)
    whole = processor.encode([VideoPart(video.frames, video.timestamps), TextPart("Video?")])
    np.testing.assert_array_equal(streamed.tokens, whole.tokens)
    np.testing.assert_array_equal(np.concatenate(streamed.frames), np.concatenate(whole.frames))


def test_an_image_travels_from_file_to_prompt_unchanged(manifest: Path) -> None:
    processor = Processor(tiny_tokenizer())
    loader = example_loader(processor, image_prompt="Image?", video_prompt="")
    grey = np.asarray(Image.open(manifest.parent / "grey.png").convert("RGB"))
    sample = Sample(id="grey", images=(manifest.parent / "grey.png",))
    direct = processor.encode([ImagePart(grey), TextPart("Image?")])
    np.testing.assert_array_equal(loader(sample).prompt.frames[0], direct.frames[0])


def test_frames_of_a_variable_rate_reach_the_judge_by_their_times(tmp_path: Path) -> None:
    """By their numbers it would take them for others."""
    load_media = media_loader(
        image_prompt="i", video_prompt="v", settings=JudgeMediaSettings(), frames=EvenFrames(fps=1.0)
    )
    ticks = [0, 100, 200, 300, 1000, 2000]
    varying = write_video(tmp_path / "varying.mkv", 6, ticks=ticks)
    even = write_video(tmp_path / "even.mp4", 20, fps=10)
    shown = [load_media(Sample(id="a", video=path)).media.video() for path in (varying, even)]
    assert [video.fps for video in shown] == [1000.0, 10.0]
    assert set(shown[0].indices) <= set(ticks)
    assert shown[1].indices == (0, 19)


def test_batches_of_all_processes_are_padded_alike() -> None:
    def share(processes: Processes) -> list[PaddedSizes]:
        return common_sizes(processes, [PaddedSizes(tokens=1 + processes.index, frames=2 - processes.index)])

    assert in_threads(2, share) == [[PaddedSizes(tokens=2, frames=2)]] * 2
