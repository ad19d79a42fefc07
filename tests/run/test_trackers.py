"""Trackers with the real packages: what they are given, once, also by a run that is killed and resumed.

No network: TensorBoard's event files are read back, Weights & Biases runs offline, trackio writes its local database.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from tests.patience import GUARD_S
from vcap_jax.configuration import ConfigError
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.metrics import MetricsWriter
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import Sample, SampleCandidate, SamplesWriter, picture
from vcap_jax.report.trackers.config import PACKAGES, TrackersConfig
from vcap_jax.report.trackers.dashboards import TrackedRun
from vcap_jax.run.config import RunConfig
from vcap_jax.run.inputs import check_inputs
from vcap_jax.run.trackers import Trackers

ROW = {"reward/mean": 0.5, "length/mean": 12.0}


def trackers(folder: Path, *use: Any, say: Any = print) -> Trackers:
    config = RunConfig(trackers=TrackersConfig(use=use, project="tests"))
    return Trackers(config, RunFolder(folder), say, groups=4)


def sample(step: int, frames: int = 1) -> Sample:
    pixels = np.full((40, 60, 3), 200, np.uint8)
    return Sample(
        step=step,
        id="beach",
        frames=tuple(picture(pixels) for _ in range(frames)),
        candidates=(
            SampleCandidate(caption="Worse.", reward=0.1),
            SampleCandidate(caption="A beach.", reward=0.75, scores={"text_quality": 9.0}),
        ),
        reference="Sand.",
    )


def results(step: int | None, when: str) -> Results:
    value = Value(value=float(step or 0), low=0.0, high=9.0, n=2, method="m")
    return Results(evaluator="judged", when=when, step=step, metrics={"reward": value}, items=2, failed=0)


def train(
    folder: Path, use: Any, steps: range, *, pictures: bool = True, evaluate: int | None = None
) -> list[str]:
    """A start of a run that goes through ``steps``; as a kill leaves it where ``close`` is not called."""
    said: list[str] = []
    given = trackers(folder, *use, say=said.append)
    given.evaluated(results(0, "start"))
    metrics = MetricsWriter(folder / "metrics.jsonl")
    metrics.truncate_after(steps.start - 1)
    given.begin(steps.start - 1)
    for step in steps:
        row = {"step": step, **ROW, "lr": step / 100}
        metrics.write(row)
        given.step(step, row, [sample(step)] if pictures else [])
        if step == evaluate:
            given.evaluated(results(step, f"step-{step}"))
    metrics.close()
    given.close()
    return said


# -- TensorBoard


def events(folder: Path) -> Iterator[Any]:
    """Of all event files in the order in which TensorBoard reads them. Format: TFRecord."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted((folder / "tensorboard").iterdir(), key=lambda p: (p.stat().st_mtime_ns, p.name)):
        content = path.read_bytes()
        place = 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            yield Event.FromString(content[place + 12 : place + 12 + length])
            place += 16 + length


def on_the_board(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], list[Any]]:
    """Scalars and other values by tag as TensorBoard shows them: what a later start has purged is gone."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    others: list[Any] = []
    for event in events(folder):
        if event.HasField("session_log") and event.session_log.status == 1:
            scalars = {tag: [(s, v) for s, v in told if s < event.step] for tag, told in scalars.items()}
            others = [(s, v) for s, v in others if s < event.step]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars.setdefault(value.tag, []).append((event.step, round(value.simple_value, 6)))
            else:
                others.append((event.step, value))
    return scalars, others


def test_tensorboard_has_every_step_once_after_a_kill_and_a_resumed_start(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    train(tmp_path, ["tensorboard"], range(1, 6), evaluate=4)
    train(tmp_path, ["tensorboard"], range(4, 8), evaluate=4)  # from the checkpoint of step 3
    scalars, others = on_the_board(tmp_path)
    assert scalars["reward"] == scalars["reward/mean"] == [(step, 0.5) for step in range(1, 8)]
    assert scalars["learning_rate"] == [(step, step / 100) for step in range(1, 8)]
    assert scalars["completions/mean_length"][0] == (1, 12.0)
    assert scalars["eval/judged/reward"] == [(0, 0.0), (4, 4.0)]
    assert scalars["eval_intervals/judged/reward/high"] == [(0, 9.0), (4, 9.0)]
    images = [(step, value) for step, value in others if value.HasField("image")]
    assert [step for step, _ in images] == list(range(1, 8))
    shown = Image.open(io.BytesIO(images[0][1].image.encoded_image_string))
    assert shown.size == (60, 40)
    (text,) = {
        value.tensor.string_val[0].decode()
        for step, value in others
        if step == 7 and value.HasField("tensor")
    }
    assert text == ("**beach**, step 7: reward 0.750, text quality 9\n\nA beach.\n\n*Reference:* Sand.")


def test_a_run_that_begins_anew_before_its_first_checkpoint_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    train(tmp_path, ["tensorboard"], range(1, 6))
    train(tmp_path, ["tensorboard"], range(1, 4))
    scalars, others = on_the_board(tmp_path)
    assert scalars["reward"] == [(step, 0.5) for step in range(1, 4)]
    assert scalars["eval/judged/reward"] == [(0, 0.0)]
    assert [step for step, value in others if value.HasField("image")] == [1, 2, 3]


def test_what_a_tracker_lacks_of_the_folder_it_is_given_first(tmp_path: Path) -> None:
    """A tracker that is added when the run is resumed, and steps that a kill kept from it."""
    pytest.importorskip("tensorboardX")
    train(tmp_path, [], range(1, 4))
    results(2, "step-2").write(tmp_path / "evaluations" / "judged" / "step-2.json")
    train(tmp_path, ["tensorboard"], range(3, 5))
    scalars, _ = on_the_board(tmp_path)
    assert [step for step, _ in scalars["reward"]] == [1, 2, 3, 4]
    assert [step for step, _ in scalars["eval/judged/reward"]] == [0, 2]


def test_a_tracker_that_is_added_later_gets_the_earlier_samples_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    train(tmp_path, [], range(1, 4))
    shown = SamplesWriter(tmp_path / "samples.jsonl")
    shown.write([sample(1), sample(3), sample(3)])
    shown.close()
    train(tmp_path, ["tensorboard"], range(4, 4))
    _, others = on_the_board(tmp_path)
    images = [(step, value.tag) for step, value in others if value.HasField("image")]
    assert images == [(1, "samples/1"), (3, "samples/1"), (3, "samples/2")]


def test_an_evaluation_that_was_made_anew_takes_the_earlier_ones_place(tmp_path: Path) -> None:
    """The board kept the figures of the first judge for good."""
    pytest.importorskip("tensorboardX")
    train(tmp_path, ["tensorboard"], range(1, 4), pictures=False, evaluate=2)
    path = tmp_path / "evaluations" / "judged" / "step-2.json"
    replace(results(2, "step-2"), metrics=results(7, "x").metrics).write(path)
    for _ in range(2):  # the second time there is nothing to do
        train(tmp_path, ["tensorboard"], range(4, 4), pictures=False)
        scalars, _ = on_the_board(tmp_path)
        assert scalars["eval/judged/reward"] == [(0, 0.0), (2, 7.0)]
        assert [step for step, _ in scalars["reward"]] == [1, 2, 3]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_what_a_follower_has_measured_meanwhile_is_given_at_the_end_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    given = trackers(tmp_path, "tensorboard")
    given.begin(0)
    for step in (1, 2):
        given.step(step, {"step": step, **ROW})
    for step in (1, 3):  # the last was left by a start that had come further
        results(step, f"step-{step}").write(tmp_path / "evaluations" / "judged" / f"step-{step}.json")
    given.close()
    assert on_the_board(tmp_path)[0]["eval/judged/reward"] == [(1, 1.0)]
    again = trackers(tmp_path, "tensorboard")
    again.begin(2)
    again.step(3, {"step": 3, **ROW})
    again.close()
    scalars, _ = on_the_board(tmp_path)
    assert scalars["eval/judged/reward"] == [(1, 1.0), (3, 3.0)]
    assert scalars["reward"] == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_clip_is_a_strip_of_frames(tmp_path: Path) -> None:
    from vcap_jax.report.trackers.contents import strip

    assert strip(sample(1, frames=3)).size == (3 * 288, 192)
    assert strip(sample(1, frames=30)).size == (8 * 288, 192)


def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorboard_x = pytest.importorskip("tensorboardX")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(tensorboard_x.SummaryWriter, "add_scalar", full)
    said = train(tmp_path, ["tensorboard"], range(1, 5))
    (told,) = said
    assert told.startswith("the tracker tensorboard has failed and is given nothing more: OSError: No space")
    monkeypatch.undo()
    assert train(tmp_path, ["tensorboard"], range(3, 6)) == []
    scalars, _ = on_the_board(tmp_path)
    assert [step for step, _ in scalars["reward"]] == [1, 2, 3, 4, 5]


def test_it_is_told_which_tracker_holds_the_run_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard_x = pytest.importorskip("tensorboardX")
    told = threading.Event()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        told.set()

    def stuck(*args: Any, **kwargs: Any) -> None:
        assert told.wait(GUARD_S), "it holds the run up without a word"

    monkeypatch.setattr("vcap_jax.run.trackers._SLOW_S", 0.0)
    monkeypatch.setattr(tensorboard_x.SummaryWriter, "add_scalar", stuck)
    given = trackers(tmp_path, "tensorboard", say=say)
    given.step(1, {"step": 1, **ROW})
    given.close()
    assert re.fullmatch(r"waiting for the tracker tensorboard for \d+ s: the run stands still", said[0])


def test_a_package_that_is_missing_is_told_before_work_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"trackers.use needs wandb, not installed.*-m pip install wandb"):
        trackers(tmp_path, "wandb")
    with pytest.raises(ConfigError, match=r"needs tensorboardX and trackio"):
        check_inputs(RunConfig(trackers=TrackersConfig(use=("tensorboard", "trackio"))), policy=False)
    with pytest.raises(ConfigError, match="name each once"):
        trackers(tmp_path, "wandb", "wandb")
    assert list(tmp_path.iterdir()) == []


def test_without_trackers_nothing_is_left(tmp_path: Path) -> None:
    train(tmp_path, [], range(1, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


# -- Trackers that never rewind


class Killed(BaseException):
    """A kill, which nothing catches."""


class Board:
    """A dashboard that only adds. had: names and steps that it was given. ends_at: the step that a kill comes in."""

    rewinds = False
    had: ClassVar[list[tuple[str, int]]]
    ends_at: ClassVar[int | None]

    def __init__(self, run: TrackedRun) -> None:
        pass

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.ends_at:
            raise Killed
        self.had.extend((name, step) for name in values)

    def picture(self, *args: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> dict[Any, type[Board]]:
    """By name, without their packages."""
    made = {name: type(name, (Board,), {"had": [], "ends_at": None}) for name in ("wandb", "trackio")}
    for name in made:
        monkeypatch.setitem(PACKAGES, name, "json")  # type: ignore[index]
    monkeypatch.setattr("vcap_jax.run.trackers._KINDS", made)
    return made


def test_a_step_is_not_given_again_to_one_that_had_it_when_another_held_the_run_up_and_it_was_killed(
    tmp_path: Path, boards: dict[Any, type[Board]]
) -> None:
    boards["trackio"].ends_at = 3
    with pytest.raises(Killed):
        train(tmp_path, ["wandb", "trackio"], range(1, 4), evaluate=2)
    boards["trackio"].ends_at = None
    train(tmp_path, ["wandb", "trackio"], range(3, 5))
    for board in boards.values():
        assert [step for name, step in board.had if name == "reward"] == [1, 2, 3, 4]
        assert [step for name, step in board.had if name == "eval/judged/reward"] == [0, 2]


def test_of_an_evaluation_made_anew_it_is_told_once_which_tracker_keeps_the_earlier_one(
    tmp_path: Path, boards: dict[Any, type[Board]]
) -> None:
    train(tmp_path, ["wandb"], range(1, 4), evaluate=2)
    path = tmp_path / "evaluations" / "judged" / "step-2.json"
    replace(results(2, "step-2"), metrics=results(7, "x").metrics).write(path)
    (told,) = train(tmp_path, ["wandb"], range(4, 4))
    assert told.startswith(
        "the tracker wandb can replace nothing, and keeps what judged/step-2 came to before:"
    )
    assert train(tmp_path, ["wandb"], range(4, 5)) == []
    assert [step for name, step in boards["wandb"].had if name == "eval/judged/reward"] == [0, 2]


# -- Weights & Biases, trackio


def test_wandb_goes_on_under_its_id_and_is_given_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    told: list[tuple[str, int, list[str]]] = []
    log = wandb.Run.log

    def listen(self: Any, data: dict[str, Any], **kwargs: Any) -> None:
        told.append((self.id, data["train/global_step"], sorted(data)))
        log(self, data, **kwargs)

    monkeypatch.setattr(wandb.Run, "log", listen)
    train(tmp_path, ["wandb"], range(1, 4), evaluate=2)
    assert train(tmp_path, ["wandb"], range(2, 6), evaluate=2) == []
    assert len({identity for identity, _, _ in told}) == 1
    rows = [step for _, step, names in told if "reward" in names]
    assert rows == [1, 2, 3, 4, 5]
    assert [step for _, step, names in told if "eval/judged/reward" in names] == [0, 2]
    assert [step for _, step, names in told if "samples/1" in names] == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_trackio_goes_on_by_its_name_and_is_given_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    storage = pytest.importorskip("trackio.sqlite_storage")
    monkeypatch.setattr(storage, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    assert train(tmp_path, ["trackio"], range(1, 4), pictures=False, evaluate=2) == []
    assert train(tmp_path, ["trackio"], range(2, 6), pictures=False, evaluate=2) == []
    (name,) = storage.SQLiteStorage.get_runs("tests")
    assert name.startswith(f"{tmp_path.name}-")
    logs = storage.SQLiteStorage.get_logs("tests", name)
    assert [row["step"] for row in logs if "reward" in row] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in logs if "eval/judged/reward" in row] == [0, 2]
