"""The vLLM engine against a stand-in server: weights before groups, caches dropped, versions held, errors named."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aiohttp import web

from tests.models.public_arrays import public_arrays
from tests.patience import GUARD_S
from tests.rollout.rollout_server import RolloutServer
from tests.tiny_policy import tiny_model
from vcap_jax.data.examples import Example
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.policy import Policy, split_adapters, split_model
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.weight_table import HEAD
from vcap_jax.rollout import vllm_server
from vcap_jax.rollout.config import RolloutConfig, VllmConfig
from vcap_jax.rollout.engine import ReadSamples, RolloutBatch, RolloutError
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.vllm_engine import VllmEngine
from vcap_jax.rollout.vllm_request import group_seed
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.system import in_work
from vcap_jax.world.backbone import BACKBONE_FOLDER

MEDIA = EncodedMedia(modality="image", duration=0.0, pictures=())
TEXT = "Describe it."
STEP = [
    "/weight_info",
    "/update_weight_version",
    "reload_weights",
    "/reset_prefix_cache",
    "/reset_encoder_cache",
    "/update_weight_version",
    "/weight_info",
]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(*split_model(tiny_model(), ("visual",)), Processor.from_pretrained(BACKBONE_FOLDER))


@pytest.fixture(scope="module")
def batches(policy) -> list[RolloutBatch]:
    rng = np.random.default_rng(0)

    def example(index: int) -> Example:
        sample = Sample(id=f"s{index}", images=(Path("x.png"),))
        if index % 2:
            frames = rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
            part = VideoPart(frames, [0.0, 0.5, 1.0, 1.5])
        else:
            part = ImagePart(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        return Example(
            sample=sample, request=TEXT, prompt=policy.processor.encode([part, TextPart(TEXT)]), media=MEDIA
        )

    examples = [example(i) for i in range(5)]
    return [
        RolloutBatch(examples[:3], range(3), None, None),
        RolloutBatch(examples[3:], range(3, len(examples)), None, None),
    ]


def engine(
    policy: Policy,
    folder: Path,
    *servers: RolloutServer,
    seed: int = 0,
    dtype: str = "float32",
    say: Callable[[str], None] = print,
    **settings,
) -> VllmEngine:
    vllm = VllmConfig(
        urls=tuple(server.url for server in servers), weights_dir=str(folder), timeout_s=GUARD_S, **settings
    )
    config = RolloutConfig(group_size=3, max_completion_length=6, engine="vllm", vllm=vllm)
    return VllmEngine(policy, config, seed=seed, dtype=dtype, say=say)


def test_a_step_is_weights_then_caches_then_groups(policy, batches, tmp_path):
    with RolloutServer(policy.processor) as server, engine(policy, tmp_path, server) as rollout:
        (served,) = rollout.connect()
        assert served.model == "policy"
        server.calls.clear()
        told = []
        groups = {
            group.index: group
            for group in rollout.stream(policy.trainable, batches, step=0, ended=told.append)
        }
        assert server.calls[:7] == STEP
        # Every group is asked for, and counts, only with its weights' name before and after it.
        assert sorted(server.calls[7:]) == ["/weight_info"] * 10 + ["chat"] * 5
        assert sorted((c.index, c.place, len(c.tokens)) for c in told) == [
            (index, place, groups[index].lengths[place]) for index in range(5) for place in range(3)
        ]
        assert sorted(groups) == list(range(5))
        for group in groups.values():
            assert group.tokens.shape == group.logprobs.shape == (3, 6)
            real = np.arange(6) < group.lengths[:, None]
            assert np.isfinite(group.logprobs[real]).all()
            assert np.isnan(group.logprobs[~real]).all()
        # The server read exactly these parameters, and nothing of them is left.
        model = policy.merge()
        for name, array in public_arrays(model.weight_map, model).items():
            np.testing.assert_array_equal(server.weights[0][name], array, err_msg=name)
        # A tied head comes under its own name as well.
        embedding = "model.language_model.embed_tokens.weight"
        np.testing.assert_array_equal(server.weights[0][HEAD], server.weights[0][embedding])
        assert not list(tmp_path.glob("*/*"))

        changed = jax.tree.map(lambda x: x + 1, policy.trainable)
        list(rollout.stream(changed, batches, step=1))
        old, new = server.weights
        assert any((old[name] != new[name]).any() for name in old)
        assert all((old[name] == new[name]).all() for name in old if name.startswith("model.visual."))
    assert not list(tmp_path.iterdir())


def test_a_step_says_how_much_of_the_adapters_the_servers_hold(batches, tmp_path):
    """In bfloat16 next to nothing while they are young; nothing is said before they add anything."""
    model = tiny_model()
    attach(model, LoraConfig(rank=2))
    policy = Policy(*split_adapters(model), Processor.from_pretrained(BACKBONE_FOLDER))
    policy = dataclasses.replace(policy, frozen=jax.tree.map(lambda x: x.astype(jnp.bfloat16), policy.frozen))
    with (
        RolloutServer(policy.processor) as server,
        engine(policy, tmp_path, server, dtype="bfloat16") as rollout,
    ):
        rollout.connect()
        kept = []
        for step, size in enumerate((0.0, 1e-5, 10.0)):
            params = (
                jax.tree.map(lambda x, size=size: x + size, policy.trainable) if size else policy.trainable
            )
            list(rollout.stream(params, batches[:1], step=step))
            kept.append(rollout.measured())
    assert kept[0] == {}
    assert kept[1]["rollout/adapters_kept"] < 0.1
    assert kept[2]["rollout/adapters_kept"] == pytest.approx(1, abs=0.02)


def test_captions_depend_on_seed_step_and_group(policy, batches, tmp_path):
    with RolloutServer(policy.processor) as server:

        def draw(seed: int, step: int) -> dict[int, np.ndarray]:
            with engine(policy, tmp_path, server, seed=seed) as rollout:
                rollout.connect()
                return {g.index: g.tokens for g in rollout.stream(policy.trainable, batches, step=step)}

        first, again = draw(0, 0), draw(0, 0)
        for index in first:
            np.testing.assert_array_equal(first[index], again[index])
        for other in (draw(0, 1), draw(1, 0)):
            assert all((first[index] != other[index]).any() for index in first)
        assert (first[0] != first[2]).any()


def test_groups_go_to_the_servers_in_turn(policy, batches, tmp_path):
    with (
        RolloutServer(policy.processor) as one,
        RolloutServer(policy.processor) as two,
        engine(policy, tmp_path, one, two) as rollout,
    ):
        rollout.connect()
        assert len(list(rollout.stream(policy.trainable, batches, step=0))) == 5
        assert (len(one.chats), len(two.chats)) == (3, 2)
        assert one.version == two.version != "default"
        assert len(one.weights) == len(two.weights) == 1


def test_a_server_with_another_prompt_is_refused(policy, batches, tmp_path):
    def other(request, answer):
        answer["prompt_token_ids"][1] += 1

    with (
        RolloutServer(policy.processor, on_chat=other) as server,
        engine(policy, tmp_path, server) as rollout,
    ):
        rollout.connect()
        with pytest.raises(RolloutError, match=r"sample s\d at http.*another prompt.*at token 1 ours"):
            list(rollout.stream(policy.trainable, batches, step=0))


def test_raw_logprobs_are_refused(policy, tmp_path):
    with (
        RolloutServer(policy.processor, first_logprob=-4.2) as server,
        engine(policy, tmp_path, server) as rollout,
        pytest.raises(RolloutError, match="--logprobs-mode processed_logprobs"),
    ):
        rollout.connect()


def test_a_server_whose_weights_give_no_numbers_is_refused(policy, tmp_path):
    with (
        RolloutServer(policy.processor, first_logprob=math.nan) as server,
        engine(policy, tmp_path, server) as rollout,
        pytest.raises(RolloutError, match="log-probability that is not a number"),
    ):
        rollout.connect()


def test_a_server_without_development_routes_is_refused(policy, tmp_path):
    with (
        RolloutServer(policy.processor, development=False) as server,
        engine(policy, tmp_path, server) as rollout,
        pytest.raises(RolloutError, match="VLLM_SERVER_DEV_MODE=1"),
    ):
        rollout.connect()


def drawn(rollout: VllmEngine, params, batches: list[RolloutBatch], step: int = 0) -> dict[int, np.ndarray]:
    return {group.index: group.tokens for group in rollout.stream(params, batches, step=step)}


def test_a_server_lost_in_mid_step_is_waited_for_and_given_the_weights_again(policy, batches, tmp_path):
    said: list[str] = []
    with (
        RolloutServer(policy.processor) as lost,
        RolloutServer(policy.processor) as kept,
        engine(policy, tmp_path, lost, kept, say=said.append) as rollout,
    ):
        rollout.connect()
        undisturbed = drawn(rollout, policy.trainable, batches)
        lost.crash_at = len(lost.chats) + 1
        again = drawn(rollout, policy.trainable, batches)
        assert again.keys() == undisturbed.keys()
        for index, tokens in undisturbed.items():
            np.testing.assert_array_equal(again[index], tokens)
        assert (len(lost.weights), len(kept.weights)) == (2, 1)
        for name, array in lost.weights[0].items():
            np.testing.assert_array_equal(lost.weights[1][name], array)
        assert lost.version == kept.version
    assert [text for text in said if text.startswith("lost: ") and "outage_timeout_s" in text]
    assert any("is back and was given the weights again" in text for text in said)


def test_a_server_that_was_started_anew_is_asked_for_nothing_before_it_has_the_weights(
    policy, batches, tmp_path
):
    """It was back before anybody missed it."""
    with RolloutServer(policy.processor) as server, engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        undisturbed = drawn(rollout, policy.trainable, batches)
        chats = len(server.chats)
        server.start_anew()
        again = drawn(rollout, policy.trainable, batches)
        for index, tokens in undisturbed.items():
            np.testing.assert_array_equal(again[index], tokens)
        assert len(server.weights) == 2
        assert len(server.chats) == chats + 5


def test_an_answer_of_a_server_that_was_started_anew_meanwhile_does_not_count(policy, batches, tmp_path):
    def once(request, answer):
        if len(server.chats) == 2:
            server.start_anew()

    with (
        RolloutServer(policy.processor) as undisturbed,
        RolloutServer(policy.processor, on_chat=once) as server,
        engine(policy, tmp_path, undisturbed) as quiet,
        engine(policy, tmp_path, server) as rollout,
    ):
        quiet.connect()
        rollout.connect()
        wanted = drawn(quiet, policy.trainable, batches)
        got = drawn(rollout, policy.trainable, batches)
        for index, tokens in wanted.items():
            np.testing.assert_array_equal(got[index], tokens)
        assert len(server.weights) == 2
        assert len(server.chats) > 5  # some were asked for twice


def test_a_server_that_is_lost_with_every_try_ends_the_step(policy, batches, tmp_path):
    def breaks(request, answer):
        server.start_anew()

    with (
        RolloutServer(policy.processor, on_chat=breaks) as server,
        engine(policy, tmp_path, server, attempts=2) as rollout,
    ):
        rollout.connect()
        with pytest.raises(RolloutError, match=r"sent 2 times \(rollout\.vllm\.attempts\).*--resume"):
            drawn(rollout, policy.trainable, batches)
        assert max(Counter(chat["seed"] for chat in server.chats).values()) == 2


def test_a_server_that_another_run_uses_is_refused(policy, batches, tmp_path):
    """The run that came first goes on, whether the other comes later or is ready at the same time."""
    with (
        RolloutServer(policy.processor) as server,
        engine(policy, tmp_path, server) as one,
        engine(policy, tmp_path, server) as beside,
    ):
        one.connect()
        beside.connect()
        drawn(one, policy.trainable, batches)
        with engine(policy, tmp_path, server) as late:
            for newcomer in (late.connect, lambda: drawn(beside, policy.trainable, batches)):
                with pytest.raises(RolloutError, match=r"another run, which uses it \(.*/vcap-rollout-.*\)"):
                    newcomer()
        drawn(one, jax.tree.map(lambda x: x + 1, policy.trainable), batches, step=1)
        assert len(server.weights) == 2
        version = server.version
        one.close()
        # Whether that run has ended or was killed, its weights are nobody's; and one's own are nobody else's.
        assert version == server.version
        drawn(beside, policy.trainable, batches)
        beside.connect()


@pytest.mark.parametrize("drops", [True, False])
def test_weights_that_another_run_gave_all_the_same_are_not_taken_for_ones_own(
    policy, batches, tmp_path, drops
):
    """Whose folder is elsewhere. drops: False where it ended since the server refused to drop its caches, as requests
    of the first were running."""
    with (
        RolloutServer(policy.processor) as server,
        engine(policy, tmp_path, server) as one,
        engine(policy, tmp_path / "elsewhere", server) as other,
    ):
        one.connect()
        other.connect()
        drawn(one, policy.trainable, batches)
        server.drops_caches = drops
        with nullcontext() if drops else pytest.raises(RolloutError, match="could not drop its prefix cache"):
            drawn(other, policy.trainable, batches)
        assert len(server.weights) == 2
        with pytest.raises(RolloutError, match="another run uses it"):
            drawn(one, policy.trainable, batches)


def read(batches: list[RolloutBatch]) -> list[ReadSamples]:
    """The batches' samples, with indices of their own."""
    first = 0
    samples = []
    for batch in batches:
        samples.append(
            ReadSamples(batch.examples, [100 + first + i for i in range(len(batch.examples))], first)
        )
        first += len(batch.examples)
    return samples


def test_captions_of_samples_are_drawn_by_rules_of_their_own(policy, batches, tmp_path):
    with RolloutServer(policy.processor) as server, engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        greedy = RolloutConfig(
            group_size=1, max_completion_length=4, sampling=SamplingConfig(temperature=0.0)
        )
        source = rollout.drawing(greedy)
        groups = list(source.captions(policy.trainable, read(batches), seed=7))
        assert sorted(group.index for group in groups) == list(range(5))
        assert all(group.tokens.shape == (1, 4) for group in groups)
        assert {(chat["n"], chat["max_tokens"], chat["temperature"]) for chat in server.chats} == {
            (1, 4, 0.0)
        }
        assert sorted(chat["seed"] for chat in server.chats) == sorted(
            group_seed(7, 0, 100 + index) for index in range(5)
        )
        # The same parameters are given once, whoever draws with them; others again.
        drawn(rollout, policy.trainable, batches)
        assert len(server.weights) == 1
        drawn(rollout, jax.tree.map(lambda x: x + 1, policy.trainable), batches, step=1)
        assert len(server.weights) == 2
        with pytest.raises(RolloutError, match="3 captions of each sample at temperature 0"):
            rollout.drawing(dataclasses.replace(greedy, group_size=3))


def test_no_more_samples_are_read_than_are_under_way(policy, batches, tmp_path):
    """A manifest may have a million of them."""
    with (
        RolloutServer(policy.processor) as server,
        engine(policy, tmp_path, server, concurrency=2) as rollout,
    ):
        rollout.connect()
        asked = []

        def endless() -> Iterator[ReadSamples]:
            while True:
                asked.append(len(asked))
                yield ReadSamples(batches[0].examples[:1], [asked[-1]], asked[-1])

        groups = rollout.drawing(RolloutConfig(group_size=1, max_completion_length=4)).captions(
            policy.trainable, endless(), seed=0
        )
        for told in range(6):
            next(groups)
            assert len(asked) <= told + 3
        groups.close()


def test_what_is_under_way_ends_with_whoever_asked(policy, batches, tmp_path):
    """A step may end in the middle; the server draws nothing that nobody reads."""
    ended = threading.Event()

    def answered(request, answer):
        if len(server.chats) == 2:  # under way when the step ends
            assert ended.wait(GUARD_S)

    with (
        RolloutServer(policy.processor, on_chat=answered) as server,
        engine(policy, tmp_path, server, concurrency=1) as rollout,
    ):
        rollout.connect()
        groups = rollout.stream(policy.trainable, batches[:1], step=0)
        next(groups)
        groups.close()
        ended.set()
        list(rollout.stream(policy.trainable, batches[1:], step=1))
        # At most the one that was under way; the third of the step was still to be asked for.
        assert len(server.chats) <= 2 + len(batches[1].examples)


def test_an_overloaded_server_is_asked_again(policy, batches, tmp_path):
    turned_away = []

    def busy(request, answer):
        if len(turned_away) < 2:
            turned_away.append(request["seed"])
            return web.Response(status=503, text="queue full")
        return None

    with RolloutServer(policy.processor, on_chat=busy) as server, engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        assert len(list(rollout.stream(policy.trainable, batches, step=0))) == 5
        assert len(server.chats) == 7


def test_a_refused_request_is_not_repeated(policy, batches, tmp_path):
    def refuse(request, answer):
        return web.Response(status=400, text="media_io_kwargs need --trust-request-mm-kwargs")

    with (
        RolloutServer(policy.processor, on_chat=refuse) as server,
        engine(policy, tmp_path, server) as rollout,
    ):
        rollout.connect()
        one = [dataclasses.replace(batches[0], examples=batches[0].examples[:1], indices=range(1))]
        with pytest.raises(RolloutError, match="answered 400: media_io_kwargs need --trust"):
            list(rollout.stream(policy.trainable, one, step=0))
        assert len(server.chats) == 1


def test_a_server_that_never_comes_is_named(policy, tmp_path):
    with RolloutServer(policy.processor) as server:
        pass
    refused = f"{server.url}/weight_info failed: connection refused.*launch/serve_rollout.py"
    with (
        engine(policy, tmp_path, server, outage_timeout_s=0) as rollout,
        pytest.raises(RolloutError, match=refused),
    ):
        rollout.connect()


def test_a_server_that_still_loads_its_model_is_waited_for(policy, batches, tmp_path):
    """Whoever started it together with the run found the run ended."""
    said: list[str] = []
    with (
        RolloutServer(policy.processor) as server,
        engine(policy, tmp_path, server, say=said.append) as rollout,
    ):
        server.away = 2
        (served,) = rollout.connect()
        assert served.url == server.url
        assert len(drawn(rollout, policy.trainable, batches)) == 5
    assert said[0].startswith("not there yet: ")


@pytest.mark.parametrize("lost_in", ["drawing", "loading"])
def test_a_run_that_was_asked_to_end_does_not_wait_for_a_lost_server(
    policy, batches, tmp_path, monkeypatch, lost_in
):
    """It waited ten minutes, and whoever had asked killed it, with all the steps since the last checkpoint."""
    monkeypatch.setattr(in_work, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(vllm_server, "requested", lambda: True)
    changed, drawing = jax.tree.map(lambda x: x + 1, policy.trainable), []

    def answered(request, answer):
        if drawing:
            server.away = 10**9

    with (
        RolloutServer(policy.processor, on_chat=answered) as server,
        engine(policy, tmp_path, server) as rollout,
    ):
        rollout.connect()
        assert len(drawn(rollout, policy.trainable, batches)) == 5, "one that is there is waited for"
        if lost_in == "drawing":
            drawing.append(True)
        else:
            server.away = 10**9
        with pytest.raises(RolloutError, match=f"asked to end while the rollout server at {server.url}"):
            drawn(rollout, changed, batches)


def test_weights_are_their_users_alone_from_the_first_byte_to_the_last(policy, tmp_path, monkeypatch):
    root, modes = tmp_path / "weights", {}
    finished = WeightFiles.write

    def look(files: WeightFiles, params, version: str):
        written = finished(files, params, version)
        for path in (root, *root.rglob("*")):
            modes[path.name] = stat.S_IMODE(path.stat().st_mode)
        return written

    monkeypatch.setattr(WeightFiles, "write", look)
    before = os.umask(0)
    try:
        with RolloutServer(policy.processor) as server, engine(policy, root, server) as rollout:
            rollout.connect()
            list(rollout.stream(policy.trainable, [], step=0))
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o700, 0o600}
    assert {name for name, mode in modes.items() if mode == 0o600} >= {"model.safetensors", "config.json"}
    assert list(root.iterdir()) == []


def test_a_weights_folder_that_others_can_exchange_is_refused(policy, tmp_path):
    with RolloutServer(policy.processor) as server:
        tmp_path.chmod(0o777)
        with pytest.raises(RolloutError, match=r"every user can change .*set rollout\.vllm\.weights_dir"):
            engine(policy, tmp_path / "planted", server)
        tmp_path.chmod(0o700)


def test_a_folder_that_is_too_small_is_named(policy, tmp_path, monkeypatch):
    with RolloutServer(policy.processor) as server, engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        small = type("Usage", (), {"free": 10})()
        monkeypatch.setattr("vcap_jax.rollout.vllm_weights.shutil.disk_usage", lambda path: small)
        with pytest.raises(RolloutError, match=r"rollout\.vllm\.weights_dir"):
            list(rollout.stream(policy.trainable, [], step=0))


def test_a_folder_that_fills_while_weights_are_written_is_named(policy, batches, tmp_path, monkeypatch):
    """The trainer saves the steps before it for a RolloutError, and for nothing else that drawing raises."""

    def write(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RolloutServer(policy.processor) as server, engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        with monkeypatch.context() as patched:
            patched.setattr("vcap_jax.models.weights.write_tensors", write)
            with pytest.raises(RolloutError, match=r"no space left.*rollout\.vllm\.weights_dir"):
                list(rollout.stream(policy.trainable, [], step=0))
        assert not list(tmp_path.glob("*/*"))
        assert len(drawn(rollout, policy.trainable, batches)) == 5


def test_the_weights_that_killed_runs_have_left_are_removed(policy, tmp_path):
    """In memory-backed files they are memory, as large as the model with every kill."""

    def files() -> WeightFiles:
        return WeightFiles(tmp_path, policy.graphdef, policy.frozen, dtype=np.dtype(np.float32))

    alive, dead = files(), files()
    assert alive.of_another_run(f"{dead.folder.name}-3") == dead.folder
    assert alive.of_another_run(f"{dead.folder.name}-3-reading") == dead.folder
    assert alive.of_another_run(f"{alive.folder.name}-3") is None
    assert alive.of_another_run("default") is None
    (dead.folder / "step").mkdir()
    (dead.folder / "step" / "model.safetensors").touch()
    os.close(dead._lock)  # as the system does at a process's end
    assert alive.of_another_run(f"{dead.folder.name}-3") is None
    elsewhere, earlier = tmp_path / "vcap-rollout-other.host-abc", tmp_path / "vcap-rollout-abcdefgh"
    for kept in (elsewhere, earlier):
        kept.mkdir()
    link = tmp_path / f"{alive.folder.name}-link"
    link.symlink_to(earlier)
    new = files()
    assert sorted(tmp_path.iterdir()) == sorted([alive.folder, new.folder, elsewhere, earlier, link])
    alive.close()
    alive.close()
    assert not alive.folder.exists()
