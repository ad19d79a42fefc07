"""A server that is killed at any moment loses nothing that it acknowledged."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.human_eval.serving_study import Visitor
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.assignment import AnnotatorView
from vcap_jax.human_eval.embedded import write_embedded_study
from vcap_jax.human_eval.study import Settings, read_study

ROOT = Path(__file__).resolve().parents[2]
_SERVE = """
import asyncio, sys
from pathlib import Path
from vcap_jax.human_eval.application.server import serving
from vcap_jax.human_eval.study import read_study

async def main():
    async with serving(read_study(Path(sys.argv[1]))) as server:
        print(server.links["anna"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("kills", [2, 20])
def test_nothing_acknowledged_is_lost_in_kills_at_any_moment(tmp_path, kills):
    settings = Settings(annotators=("anna",), overlap=0)
    write_embedded_study(tmp_path, images=12, settings=settings)
    acknowledged: dict[str, tuple[str, int]] = {}
    rng = random.Random(0)
    for kill in range(kills):
        command = [sys.executable, "-c", _SERVE, str(tmp_path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            link = re.fullmatch(r"(http://\S+)/enter/(\S+)", process.stdout.readline().strip())
            assert link is not None
            asyncio.run(
                answer_until_killed(link[1], link[2], process, rng.randrange(1, 40), kill, acknowledged)
            )
        finally:
            process.kill()
            process.wait()
    assert len(acknowledged) > kills
    with StoredAnswers(tmp_path / "answers.sqlite") as stored:
        for key, (step1, version) in acknowledged.items():
            item, prop = key.split("|")
            held = stored.state("anna", item).verdicts[prop]
            # A later answer may have been stored without being acknowledged, never an earlier one.
            assert held.version >= version
            assert held.version > version or held.verdict.step1 == step1


async def answer_until_killed(address, token, process, after, kill, acknowledged):
    """Answers without pause from four tasks; the process is killed once ``after`` answers are acknowledged, while
    others are on their way."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        one = Visitor(http, address, "anna")
        await one.post(f"/enter/{token}")
        me = await one.json("/api/me")
        count = 0

        async def work(share):
            nonlocal count
            for row in me["items"][share::4]:
                item = await one.json(f"/api/item/{row['key']}")
                for number, prop in enumerate(item["propositions"]):
                    step1 = ("2. inconsistent", "3. undecidable")[(number + kill) % 2]
                    status, told = await one.answer(item, prop, step1, None, f"kill {kill}")
                    assert status == 200, told
                    acknowledged[names[item["key"], prop["key"]]] = (step1, told["version"])
                    count += 1
                    if count == after:
                        process.send_signal(signal.SIGKILL)

        names = true_names(Path(process.args[3]))
        results = await asyncio.gather(*(work(share) for share in range(4)), return_exceptions=True)
        assert all(result is None or isinstance(result, aiohttp.ClientError) for result in results), results
        assert count >= after


def true_names(folder):
    """(alias of the item, alias of the proposition) to "item|proposition"."""
    study = read_study(folder)
    view = AnnotatorView(study, "anna")
    return {
        (view.alias(item), view.alias(prop.prop_id)): f"{item}|{prop.prop_id}"
        for item, props in study.propositions.items()
        for prop in props
    }
