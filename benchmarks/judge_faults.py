"""Trains nothing, but asks for rewards as a trainer does while the judge goes wrong in every way we know.

    python benchmarks/judge_faults.py                    # every fault alone, then all of them mixed
    python benchmarks/judge_faults.py --only mixed --judgements 10000

In front of the embedded judge stands a server that spoils 30% of all requests (``tests/reward/fault_server.py``). The
same groups are scored once without faults, which is the truth, and once with them. Required is:

* no wrong reward: every reward is the true one or none, and so is every advantage computed from them;
* no deadlock: all groups are back within a bound on wall time;
* none lost that a retry could have saved: a judgement without a score has met a fault on every try it was entitled to,
  or the server has refused it for good (400);
* the deadline holds: no HTTP request outlives it by more than half a second and the longest stall of this process,
  which a thread measures that does nothing else.

"refused" closes the listening socket for a moment again and again. A try that meets it never reaches the server. Such
requests, and those that a busy machine makes late, are counted as unforeseen: tries that a lost judgement lacks in the
server's log must be found among them.

Exits with 1 if any of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.judge_gaming import media_of
from benchmarks.stalls import Stalls
from gpu_judge.embedded.judge import EmbeddedJudge
from tests.reward.fault_server import FAULTS, FINAL, USABLE, FaultServer, Plan
from vcap_jax.grpo.advantages import AdvantageConfig, group_advantages
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.session import RewardSession
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.dataset import sample_scene

REFUSED = "refused"
KINDS = (REFUSED, *FAULTS)
GROUP_SIZE = 8
_SLACK_S = 0.5
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one run under faults.

    judgements: questions asked. requests: HTTP requests that the client counts. faults: by kind, as the server dealt
    them. scored, lost: candidates with and without a reward. wrong_rewards, wrong_advantages: candidates whose value
    differs from the truth. unexplained: lost judgements whose tries in the server's log were not all used up. savable:
    the same where requests that failed by themselves do not explain them either. unforeseen: those requests (refused,
    or too late on a busy machine). seconds: wall time. longest_s: of
    one HTTP request. stall_s: the longest time for which the machine did not let this process run.
    """

    name: str
    judgements: int
    requests: int
    faults: dict[str, int]
    scored: int
    lost: int
    wrong_rewards: int
    wrong_advantages: int
    unexplained: int
    savable: int
    unforeseen: int
    deadlocked: int
    seconds: float
    longest_s: float
    stall_s: float
    deadline_s: float
    reasons: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether all that the module's docstring requires is so."""
        bad = self.wrong_rewards + self.wrong_advantages + self.savable + self.deadlocked
        return bad == 0 and self.longest_s <= self.deadline_s + _SLACK_S + self.stall_s


def groups_for(judgements: int, *, seed: int, videos: bool = True) -> list[GroupForReward]:
    """Groups that need at least so many judgements; every fourth is a video, whose captions need two each."""
    groups: list[GroupForReward] = []
    asked = 0
    while asked < judgements:
        index = len(groups)
        video = videos and index % 4 == 3
        scene = sample_scene("video" if video else "image", seed, index, "faults")
        rng = np.random.default_rng([seed, index])
        captions = {full_caption(scene, rng): None}
        while len(captions) < GROUP_SIZE:
            captions[weak_caption(scene, rng)] = None
        groups.append(
            GroupForReward(
                sample_id=f"scene-{index}",
                step=0,
                index=index,
                media=media_of(scene),
                reference=weak_caption(scene, rng),
                captions=tuple(captions),
            )
        )
        asked += GROUP_SIZE * (2 if video else 1)
    return groups


def plan_for(kinds: Sequence[str], *, rate: float, seed: str) -> Plan:
    """Each request meets one of ``kinds`` with probability ``rate``, whatever the order of arrival.

    A 400 is a property of the question: it is refused on every try.
    """
    passing = [kind for kind in kinds if kind in FAULTS and kind not in FINAL]
    final = [kind for kind in kinds if kind in FINAL]
    final_rate = rate * len(final) / max(1, len(passing) + len(final))
    passing_rate = (rate - final_rate) / (1 - final_rate)

    def plan(question: str, attempt: int) -> str | None:
        draw = random.Random(f"{seed}/{question}")
        if draw.random() < final_rate:
            return draw.choice(final)
        draw = random.Random(f"{seed}/{question}/{attempt}")
        return draw.choice(passing) if passing and draw.random() < passing_rate else None

    return plan


def endure(
    name: str,
    groups: Sequence[GroupForReward],
    kinds: Sequence[str],
    truth: Sequence[Sequence[float | None]],
    *,
    rate: float = 0.3,
    deadline_s: float = 1.0,
    seed: int = 0,
    concurrency: int = 32,
    limit_s: float = 600.0,
) -> Outcome:
    """Scores the groups while faults of ``kinds`` happen. limit_s: of wall time; what is not back then counts as
    deadlocked."""
    every = 200 if len(kinds) > 1 else 40  # one outage fails all requests that are on their way to it
    refuse_every = every if REFUSED in kinds else 0
    plan = plan_for(kinds, rate=rate, seed=f"{seed}/{name}")
    with FaultServer(
        EmbeddedJudge(), plan, deadline_s=deadline_s, refuse_every=refuse_every, refuse_s=0.03
    ) as server:
        config = judge_config(server, deadline_s=deadline_s, concurrency=concurrency)
        session = RewardSession(RewardConfig(), config, seed=seed, say=lambda text: None)
        with session, Stalls() as stalls:
            session.wait_until_ready()
            began = time.monotonic()
            futures = [session.submit(group) for group in groups]
            done, late = wait(futures, timeout=limit_s)
            seconds = time.monotonic() - began
            scores = [future.result() if future in done else None for future in futures]
            seen = session.statistics()
    found = [s.rewards if s is not None else [None] * GROUP_SIZE for s in scores]
    faults = Counter(call.fault for call in server.calls if call.fault is not None)
    faults[REFUSED] += server.outages
    # Whatever is unusable fails one request; what fails beyond that was not the server's doing.
    unusable = sum(call.fault is not None and call.fault not in USABLE for call in server.calls)
    unforeseen = max(0, seen.requests - seen.judged - unusable)
    unexplained, missing = lost_early(server, lost=seen.failed)
    failures = [c.failure for s in scores if s is not None for c in s.candidates if c.failure is not None]
    return Outcome(
        name=name,
        judgements=seen.judged + seen.failed,
        requests=seen.requests,
        faults={kind: count for kind, count in faults.items() if count},
        scored=sum(r is not None for group in found for r in group),
        lost=sum(r is None for group in found for r in group),
        wrong_rewards=wrong_rewards(found, truth),
        wrong_advantages=wrong_advantages(found, truth),
        unexplained=unexplained,
        savable=unexplained if missing > unforeseen else 0,
        unforeseen=unforeseen,
        deadlocked=len(late),
        seconds=seconds,
        longest_s=seen.latency_max_s,
        stall_s=stalls.longest_s,
        deadline_s=deadline_s,
        reasons=dict(Counter(failure.reason for failure in failures)),
    )


def judge_config(server: FaultServer, *, deadline_s: float, concurrency: int = 32) -> JudgeConfig:
    """Short waits, so that thousands of retries take seconds; tries and deadline are what is tested."""
    return JudgeConfig(
        urls=(server.url,),
        deadline_s=deadline_s,
        concurrency=concurrency,
        max_tries=_TRIES,
        backoff_s=0.02,
        max_backoff_s=0.1,
    )


def true_rewards(groups: Sequence[GroupForReward], *, seed: int = 0) -> list[list[float | None]]:
    """The groups' rewards from a judge that never fails."""
    with FaultServer(EmbeddedJudge(), deadline_s=60.0) as server:
        config = judge_config(server, deadline_s=60.0)
        with RewardSession(RewardConfig(), config, seed=seed) as session:
            futures = [session.submit(group) for group in groups]
            rewards = [future.result().rewards for future in futures]
    assert all(reward is not None for group in rewards for reward in group)
    return rewards


def wrong_rewards(found: Sequence[Sequence[float | None]], truth: Sequence[Sequence[float | None]]) -> int:
    """Rewards that are there and are not the true ones."""
    pairs = zip(found, truth, strict=True)
    return sum(r is not None and r != t for a, b in pairs for r, t in zip(a, b, strict=True))


def wrong_advantages(found: Sequence[Sequence[float | None]], truth: Sequence[Sequence[float | None]]) -> int:
    """Advantages that differ from those of the true rewards under the same mask."""
    rewards = np.array([[np.nan if r is None else r for r in group] for group in found])
    valid = np.isfinite(rewards)
    config = AdvantageConfig()
    ours = group_advantages(rewards, valid, config).advantages
    true = group_advantages(np.array(truth, dtype=float), valid, config).advantages
    return int((np.asarray(ours) != np.asarray(true)).sum())


def lost_early(server: FaultServer, *, lost: int) -> tuple[int, int]:
    """Lost judgements that the server's log does not explain, and the tries that would explain them.

    Explained is a judgement whose every try met a fault and which had all its tries or was refused for good. lost: as
    the client counts them.
    """
    tries: dict[str, list[str | None]] = {}
    for call in server.calls:
        tries.setdefault(call.question, []).append(call.fault)
    unanswered = [t for t in tries.values() if not any(fault is None or fault in USABLE for fault in t)]
    missing = [max(0, _TRIES - len(t)) for t in unanswered if not FINAL.intersection(map(str, t))]
    # Judgements lost although an answer was sent, and those given up with tries left.
    answered = max(0, lost - len(unanswered))
    return answered + sum(n > 0 for n in missing), answered + sum(missing)


def line(outcome: Outcome) -> str:
    """One row of the table."""
    kinds = sum(outcome.faults.values())
    return (
        f"{outcome.name:<28}{outcome.judgements:>7}{outcome.requests:>9}{kinds:>8}{outcome.scored:>8}{outcome.lost:>6}"
        f"{outcome.wrong_rewards:>7}{outcome.wrong_advantages:>7}{outcome.unexplained:>8}{outcome.savable:>8}"
        f"{outcome.unforeseen:>8}{outcome.deadlocked:>6}"
        f"{outcome.longest_s:>9.2f}{outcome.stall_s:>7.2f}{outcome.seconds:>8.1f}"
        f"  {'holds' if outcome.holds else 'FAILS'}"
    )


HEADER = (
    f"{'fault':<28}{'judged':>7}{'requests':>9}{'faults':>8}{'scored':>8}{'lost':>6}{'wrong':>7}{'w.adv.':>7}"
    f"{'unexpl.':>8}{'savable':>8}{'unfor.':>8}{'hang':>6}{'longest':>9}{'stall':>7}{'wall s':>8}"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--judgements", type=int, default=2400, help="of the mixed run")
    parser.add_argument("--each", type=int, default=240, help="judgements for each fault alone")
    parser.add_argument("--rate", type=float, default=0.3, help="share of requests that meet a fault")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds for one HTTP request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one fault by name, or 'mixed'")
    parser.add_argument("--output", type=Path, default=Path("runs/judge_faults.json"))
    options = parser.parse_args(arguments)
    names = [*KINDS, "mixed"] if options.only is None else [options.only]
    if unknown := set(names) - {*KINDS, "mixed"}:
        parser.error(f"there is no fault {unknown.pop()!r}; there are: {', '.join((*KINDS, 'mixed'))}")
    few, many = (groups_for(n, seed=options.seed) for n in (options.each, options.judgements))
    truths = {id(few): true_rewards(few), id(many): true_rewards(many)}
    print(
        f"{options.rate:.0%} of requests spoiled, {_TRIES} tries, deadline {options.deadline:g} s\n\n{HEADER}"
    )
    outcomes = []
    for name in names:
        groups = many if name == "mixed" else few
        outcome = endure(
            name,
            groups,
            KINDS if name == "mixed" else (name,),
            truths[id(groups)],
            rate=options.rate,
            deadline_s=options.deadline,
            seed=options.seed,
        )
        outcomes.append(outcome)
        print(line(outcome), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(outcome) | {"holds": outcome.holds} for outcome in outcomes]
    options.output.write_text(json.dumps({"rate": options.rate, "runs": rows}, indent=1) + "\n")
    print(f"\n{options.output}")
    return int(not all(outcome.holds for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
