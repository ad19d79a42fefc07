"""The public captioner: one, several, streams of any length; and a real policy behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vcap_jax
from tests.captioning.engine import ReadingEngine, write_pictures
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing, Part, Pixels, drawn_by
from vcap_jax.captioning.inputs import Inputs
from vcap_jax.configuration import ConfigError
from vcap_jax.data.errors import MediaError
from vcap_jax.data.pipeline import BadSample
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.world.dataset import write_dataset


def test_one_is_a_text_and_several_are_a_list_in_their_order(tmp_path: Path) -> None:
    captioner = Captioner(ReadingEngine())
    paths = write_pictures(tmp_path, 5)
    assert captioner.caption(str(paths[3])) == captioner.caption(paths[3])
    together = captioner.caption(paths, seed=4)
    assert [text.split()[-1] for text in together] == [f"{place}/4/0" for place in range(5)]
    assert together == captioner.caption(tuple(map(str, paths)), seed=4)


def test_pictures_in_memory_are_as_those_on_disk(tmp_path: Path) -> None:
    captioner = Captioner(ReadingEngine())
    (path, *_) = write_pictures(tmp_path, 1)
    with Image.open(path) as picture:
        assert captioner.caption(picture) == captioner.caption(path)
        assert captioner.caption(np.array(picture)) == captioner.caption(path)
        grey = np.array(picture)[..., 2]
    assert captioner.caption(grey).startswith("['(9, 8, 3) 40.0']")
    with pytest.raises(MediaError, match=r"an array of float64 \[9, 8\]: give uint8"):
        captioner.caption(grey / 255)


def test_a_picture_in_memory_is_turned_as_its_file_is(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the picture was taken with the camera on its side
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    captioner = Captioner(ReadingEngine())
    with Image.open(tmp_path / "a.jpg") as picture:
        assert captioner.caption(picture) == captioner.caption(tmp_path / "a.jpg")
        assert "(40, 20, 3)" in captioner.caption(picture)


def test_a_stream_goes_on_without_what_cannot_be_read(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 4)
    paths[1].write_bytes(b"no picture")
    captioner = Captioner(ReadingEngine())
    found = sorted(captioner.stream([*paths, tmp_path / "gone.png"], n=2, sample=True), key=lambda c: c.index)
    assert [caption.failure is None for caption in found] == [True, False, True, True, False]
    assert all(len(caption.texts) == 2 for caption in found if caption.failure is None)
    assert "001.png: not a readable image" in str(found[1].failure)
    with pytest.raises(ValueError, match=r"001\.png has no caption"):
        _ = found[1].text
    with pytest.raises(MediaError, match=r"001\.png: not a readable image"):
        captioner.caption(paths)
    assert [c.failure is None for c in captioner.stream([paths[1]])] == [False]


def test_what_fails_is_named_whatever_its_name_is(tmp_path: Path) -> None:
    """Also where the reason does not name it, as of a picture that is too long."""
    (path,) = write_pictures(tmp_path, 1)
    other = path.rename(tmp_path / "sample 2 x.png")
    reasons = ["too long: crop it", "sample 1 has 9 patches", f"{other}: sample 2 x.png has nothing"]

    class Failing(ReadingEngine):
        def captions(
            self, parts: Iterable[Part], rollout: RolloutConfig, *, seed: int, pixels: Pixels
        ) -> Iterator[Captioned | BadSample]:
            for part in parts:
                for sample in part.samples:
                    yield BadSample(id=sample.id, reason=reasons[int(sample.id)])

    found = list(Captioner(Failing()).stream([other] * 3))
    assert [caption.failure for caption in found] == [reasons[0], f"{other} has 9 patches", reasons[2]]
    assert [caption.named_failure for caption in found] == [
        f"{other}: {reasons[0]}",
        *(c.failure for c in found[1:]),
    ]
    with pytest.raises(MediaError) as raised:
        Captioner(Failing()).caption(other)
    assert str(raised.value) == f"{other}: too long: crop it"


def test_a_stream_of_any_length_is_read_as_it_is_needed(tmp_path: Path) -> None:
    (path, *_) = write_pictures(tmp_path, 1)
    read = 0

    def endless() -> Iterator[Path]:
        nonlocal read
        while True:
            read += 1
            yield path

    stream = Captioner(ReadingEngine()).stream(endless())
    found = [next(stream) for _ in range(10)]
    assert [caption.index for caption in found] == list(range(10))
    assert read <= 4096
    stream.close()


def test_a_stream_goes_on_without_a_picture_in_memory_that_is_none(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 3)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(paths[1])
    paths[1].write_bytes(paths[1].read_bytes()[:2000])
    pictures = [Image.open(path) for path in paths]  # Pillow reads no pixels yet
    found = sorted(Captioner(ReadingEngine()).stream(pictures), key=lambda caption: caption.index)
    assert [caption.failure is None for caption in found] == [True, False, True]
    assert "picture 1: not a usable picture" in str(found[1].failure)


def test_a_single_input_is_no_stream_of_its_letters_or_rows(tmp_path: Path) -> None:
    captioner = Captioner(ReadingEngine())
    (path,) = write_pictures(tmp_path, 1)
    with Image.open(path) as picture:
        for one in (str(path), path, picture, np.array(picture)):
            with pytest.raises(TypeError, match=f"inputs is a single {type(one).__name__}: give a list"):
                list(captioner.stream(one))  # type: ignore[arg-type]
        several = captioner.stream(np.stack([np.array(picture)] * 2))
        assert [caption.failure for caption in several] == [None, None]


def test_what_is_no_picture_at_all_is_named() -> None:
    for one in (None, b"photo.jpg", [[0, 0], [0, 0]]):
        wanted = (
            f"^picture 0 is of type {type(one).__name__}: give a path, a Pillow image.* or a NumPy array$"
        )
        with pytest.raises(MediaError, match=wanted):
            Captioner(ReadingEngine()).caption([one])  # type: ignore[list-item]


@pytest.mark.parametrize("given", [3, None, b"photo.jpg", bytearray(b"photo"), memoryview(b"photo")])
def test_what_is_no_input_and_no_list_of_them_is_told_by_its_type(given: Any) -> None:
    captioner = Captioner(ReadingEngine())
    wanted = f"^inputs is of type {type(given).__name__}: give a path, .*, or a list of them$"
    for asked in (captioner.caption, lambda inputs: list(captioner.stream(inputs))):
        with pytest.raises(TypeError, match=wanted) as raised:
            asked(given)
        assert ("io.BytesIO" in str(raised.value)) == (not isinstance(given, int | None))
    with pytest.raises(TypeError, match=f"^named is of type {type(given).__name__}: give a path, or a list"):
        Inputs(given)
    with pytest.raises(ConfigError, match=f"by is of type {type(given).__name__}: give the folder of"):
        Captioner.load(given)


def test_what_is_wrong_is_told_in_the_words_of_python_and_of_the_command(tmp_path: Path) -> None:
    config = RunConfig()
    with pytest.raises(ConfigError, match=r"by sample \(--sample\) or temperature \(--temperature\), or ask"):
        drawn_by(config, Drawing(captions=2), 1)
    with pytest.raises(ConfigError, match=r"by \(--by\) \S+/gone does not exist: give the folder"):
        Captioner.load(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"by \(--by\) http://\[::1: an address cannot be read"):
        Captioner.load("http://[::1")
    with pytest.raises(JudgeUnavailable, match=r"api_key_env \(--api-key-env\) names NO_SUCH_KEY"):
        Captioner.load("http://127.0.0.1:9", api_key_env="NO_SUCH_KEY")


def test_no_more_pictures_in_memory_are_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcap_jax.captioning.captioner._HELD_BYTES", 10 * 8 * 9 * 3)
    engine, made = ReadingEngine(), 0

    def pictures() -> Iterator[np.ndarray]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield np.zeros((9, 8, 3), np.uint8)

    stream = Captioner(engine).stream(pictures())
    next(stream)
    assert made <= 11
    assert [next(stream).index for _ in range(99)] == list(range(1, 100))
    assert {len(batch) for batch in engine.batches} == {10}


def test_pictures_of_one_size_are_captioned_side_by_side(tmp_path: Path) -> None:
    engine = ReadingEngine()
    sizes = [30, 10, 20, 10, 30, 20]
    for index, size in enumerate(sizes):
        Image.new("RGB", (size, size)).save(tmp_path / f"{index}.png")
    (tmp_path / "6.mp4").touch()
    list(Captioner(engine).stream(Inputs([tmp_path])))
    assert engine.batches == [[1, 3, 2, 5, 0, 4], [6]]


def test_several_captions_that_would_be_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would all be the same"):
        next(Captioner(ReadingEngine()).stream(write_pictures(tmp_path, 1), n=2))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"n": 0}, "n, captions of each input, is 0: give a whole number of at least 1"),
        ({"n": 1.5, "sample": True}, "n, captions of each input, is 1.5"),
        ({"n": "2", "sample": True}, "n, captions of each input, is '2'"),
        ({"temperature": -1}, "temperature is -1: give a number of at least 0, or None"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"seed": -1}, "seed is -1: give a whole number from 0 to 2"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_by_name(
    given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """A seed beyond 32 bits would draw as another does, and one of half a number as its whole part."""
    with pytest.raises(ValueError, match=f"^{told}") as raised:
        next(Captioner(ReadingEngine()).stream(write_pictures(tmp_path, 1), **given))
    assert type(raised.value) is ValueError, "and none of pydantic's"


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    captioner, pictures = Captioner(ReadingEngine()), write_pictures(tmp_path, 1)
    (ours,) = captioner.stream(pictures, n=2, temperature=0.5, seed=3)
    (theirs,) = captioner.stream(
        pictures,
        n=np.int64(2),
        temperature=np.float32(0.5),
        seed=np.uint32(3),  # type: ignore[arg-type]
    )
    assert ours == theirs


def test_the_package_root_has_it_without_importing_it() -> None:
    assert vcap_jax.Captioner is Captioner
    assert "Captioner" in dir(vcap_jax)
    with pytest.raises(AttributeError, match="no attribute 'Captain'"):
        _ = vcap_jax.Captain  # type: ignore[attr-defined]


def test_what_only_another_kind_of_captioner_would_hear_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step \(--step\) chooses a run's checkpoint, and http://x"):
        Captioner.load("http://x", step=3)
    with pytest.raises(ConfigError, match=r"served_model \(--served-model\) is of a server, and .*embedded"):
        Captioner.load("embedded", served_model="a")
    with pytest.raises(ConfigError, match=r"api_key_env \(--api-key-env\) is of a server"):
        Captioner.load(tmp_path, api_key_env="KEY")


def test_what_holds_no_captioner_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.group_sizes"):
        Captioner.load("embedded", settings=["rollout.group_sizes=2"])
    with pytest.raises(ConfigError, match=r"settings is a text, 'data\.fps=1': give a list"):
        Captioner.load("embedded", settings="data.fps=1")
    with pytest.raises(ConfigError, match=r"prompt \(--prompt\) has no text"):
        Captioner.load("embedded", prompt=" ")


@pytest.mark.slow
def test_a_real_policy_captions_pictures_and_clips_alone_as_in_company(tmp_path: Path) -> None:
    write_dataset(tmp_path / "image", "image", "captioned", 3, seed=0)
    write_dataset(tmp_path / "video", "video", "captioned", 1, seed=0)
    with Captioner.load("embedded", settings=["rollout.max_completion_length=24"]) as captioner:
        found = sorted(captioner.stream(Inputs([tmp_path])), key=lambda caption: caption.index)
        assert [caption.modality for caption in found] == ["image"] * 3 + ["video"]
        assert all(caption.failure is None and caption.text for caption in found)
        assert all(0 < caption.tokens[0] <= 24 for caption in found)
        assert found[3].text.startswith("[0.0")
        assert captioner.caption(found[1].files[0]) == found[1].text
        with Image.open(found[1].files[0]) as picture:
            assert captioner.caption(picture) == found[1].text
