"""How fast the annotation application is with a study of the paper's size: 500 pictures with five captions each.

    python benchmarks/annotation.py --out annotation.json

A server process of its own, and ten annotators who answer at once over HTTP, as their browsers would. First page: all
that a browser asks for until an annotator sees the first item, one request after the other. An answer is on disk before
it is acknowledged, so the disk of the machine is in the figures; so is whatever else the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np

from vcap_jax.human_eval.embedded import write_embedded_study
from vcap_jax.human_eval.study import Settings
from vcap_jax.run.command_line import guarded

ROOT = Path(__file__).resolve().parent.parent
FIRST_PAGE = (
    "/annotate",
    "/static/icon.svg",
    "/static/style.css",
    "/static/theme.js",
    "/static/annotate.js",
    "/static/queue.js",
    "/static/viewer.js",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--annotators", type=int, default=10)
    parser.add_argument("--answers", type=int, default=100, help="of each annotator")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()

    def work() -> int:
        with tempfile.TemporaryDirectory() as folder:
            people = tuple(f"annotator-{number}" for number in range(args.annotators))
            made = write_embedded_study(
                Path(folder), images=args.items, settings=Settings(annotators=people, overlap=0.2)
            )
            figures = measure(Path(folder), people, args.answers)
        figures |= {
            "items": args.items,
            "captions": 5 * args.items,
            "propositions": len(made.propositions),
            "annotators": args.annotators,
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
        }
        text = json.dumps(figures, indent=2)
        print(text)
        if args.out is not None:
            args.out.write_text(f"{text}\n")
        return 0

    return guarded(work, goes_on=False)


def measure(folder: Path, people: tuple[str, ...], answers: int) -> dict[str, float]:
    """Starts the server and asks it."""
    command = [sys.executable, str(ROOT / "launch" / "annotate.py"), str(folder), "--port", "0"]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        links: dict[str, str] = {}
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"\s+(\S+)\s+(http://\S+)", line):
                links[found[1]] = found[2]
            if line.startswith("Ctrl-C"):
                break
        figures = {"start_s": time.perf_counter() - begun}
        return figures | asyncio.run(ask(links, people, answers, process.pid))
    finally:
        process.terminate()
        process.wait()


async def ask(links: dict[str, str], people: tuple[str, ...], answers: int, pid: int) -> dict[str, float]:
    first = [await first_page(links[name]) for name in people[:3]]
    taken = np.concatenate(await asyncio.gather(*(annotate(links[name], name, answers) for name in people)))
    owner = time.perf_counter()
    async with session(links["owner"]) as (http, root), http.get(f"{root}/study") as page:
        assert page.status == 200
        await page.read()
    return {
        "first_page_s": first[0],
        "first_page_again_s": float(np.median(first[1:])),
        "answer_median_ms": float(np.median(taken) * 1000),
        "answer_p95_ms": float(np.quantile(taken, 0.95) * 1000),
        "answers": len(taken),
        "study_page_s": time.perf_counter() - owner,
        "server_peak_mib": peak_mib(pid),
    }


class session:
    """Somebody's session: the client and the address of the server."""

    def __init__(self, link: str) -> None:
        self._link = link
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> tuple[aiohttp.ClientSession, str]:
        root = self._link.split("/enter/")[0]
        async with self._http.post(self._link, allow_redirects=False) as answer:
            assert answer.status == 303
        return self._http, root

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()


async def first_page(link: str) -> float:
    async with session(link) as (http, root):
        begun = time.perf_counter()
        for path in FIRST_PAGE:
            async with http.get(root + path) as answer:
                assert answer.status == 200
                await answer.read()
        async with http.get(f"{root}/api/me") as answer:
            me = await answer.json()
        async with http.get(f"{root}/api/item/{me['items'][0]['key']}") as answer:
            item = await answer.json()
        async with http.get(root + item["media"]["url"]) as answer:
            assert answer.status == 200
            await answer.read()
        return time.perf_counter() - begun


async def annotate(link: str, name: str, answers: int) -> np.ndarray:
    """Seconds of each answer, from sending it to its acknowledgement."""
    taken: list[float] = []
    async with session(link) as (http, root):
        async with http.get(f"{root}/api/me") as answer:
            me = await answer.json()
        for row in me["items"]:
            async with http.get(f"{root}/api/item/{row['key']}") as answer:
                item = await answer.json()
            for one in item["propositions"]:
                said = {"prop": one["key"], "step1": "2. inconsistent", "step2": None, "note": ""}
                said |= {"version": 0, "request": secrets.token_hex(16)}
                begun = time.perf_counter()
                async with http.post(
                    f"{root}/api/item/{item['key']}/answer", json=said, headers={"X-Annotator": name}
                ) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
                taken.append(time.perf_counter() - begun)
                if len(taken) == answers:
                    return np.array(taken)
    return np.array(taken)


def peak_mib(pid: int) -> float:
    """The most memory that a process has held (Linux)."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return float(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    sys.exit(main())
