"""What a server's own counts say of its work."""

from __future__ import annotations

import json

import pytest

from gpu_judge.vllm_server.readiness import NotReady
from gpu_judge.vllm_server.stalls import Activity, Silence, read_activity

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {judge}"} 0.0
vllm:num_requests_waiting{engine="0",model_name="a {judge}"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a {judge}",reason="capacity"} 3.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="a {judge}"} 1.2e+06
vllm:prompt_tokens_total{engine="1",model_name="a {judge}"} 4.0
vllm:prompt_tokens_created{engine="0",model_name="a {judge}"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="a {judge}"} 30.0
"""


def load(count: object = 0) -> str:
    return json.dumps({"server_load": count})


def test_tokens_are_those_read_and_written_by_all_engines() -> None:
    assert read_activity(load(), METRICS) == Activity(waiting=False, tokens=1_200_034.0)


@pytest.mark.parametrize("name", ["running", "waiting"])
def test_requests_wait_where_the_engine_or_the_process_for_http_counts_any(name: str) -> None:
    counted = METRICS.replace(f"num_requests_{name}{{", f'num_requests_{name}{{pool="x",').replace(
        " 0.0", " 2.0"
    )
    assert read_activity(load(-1), counted).waiting
    assert read_activity(load(1), METRICS).waiting
    assert not read_activity(load(-1), METRICS).waiting


@pytest.mark.parametrize(
    ("told", "metrics", "message"),
    [
        (
            load(),
            "",
            "without vllm:prompt_tokens_total, vllm:generation_tokens_total, vllm:num_requests_running",
        ),
        (load(), METRICS.replace("generation_tokens", "tokens"), "without vllm:generation_tokens_total"),
        (load(), METRICS.replace(" 30.0", " many"), "generation_tokens_total is 'many', no number"),
        (load("none"), METRICS, "without a server_load"),
        ("[]", METRICS, "without a server_load"),
        ("<html>", METRICS, "without a server_load: '<html>'"),
    ],
)
def test_answers_that_do_not_tell_are_named(told: str, metrics: str, message: str) -> None:
    with pytest.raises(NotReady, match=message):
        read_activity(told, metrics)


def test_silence_is_the_time_with_requests_and_no_token() -> None:
    silence = Silence()
    seconds = []
    for waiting, tokens in [
        (True, 10.0),  # the first look: nothing to compare with
        (True, 10.0),
        (False, 10.0),  # its client has left it
        (True, 10.0),
        (True, 11.0),
        (False, 11.0),
        (True, 11.0),
        (True, 0.0),
    ]:
        silence.record(Activity(waiting=waiting, tokens=tokens), 5.0)
        seconds.append(silence.seconds)
    assert seconds == [0, 5, 5, 10, 0, 0, 5, 0]
