"""Writes the propositions that people decide: a judge compares the captions of each item, and a verifier takes out
obvious errors. Started again, it asks only what is not answered yet.

    python launch/propose.py STUDY --judge http://127.0.0.1:8000
    python launch/propose.py STUDY --judge https://api.openai.com --judge-model gpt-4o --judge-key-env OPENAI_API_KEY
    python launch/propose.py STUDY --judge http://a:8000,http://b:8000 judge.concurrency=64
    python launch/propose.py STUDY --manifest test.jsonl --captions base=base.jsonl mine=mine.jsonl --items 100 \\
        --judge http://127.0.0.1:8000

STUDY has items.jsonl, or gets it of a manifest and a file of captions for each model, as launch/caption.py and the
evaluations of a run write them (one by the reward, and rewards.jsonl of launch/score.py, give the rewards too). It gets
propositions.jsonl, rejected.jsonl (each with its reason), propose.json (counts, failures, requests) and
judgements.sqlite (every answer). Settings that follow say how the judge is asked. With --judge embedded the
propositions follow from the facts of the embedded world's scenes, which stand beside the manifest, but for 15% of a
caption's claims, which are overlooked there on purpose, as a judge would; truth.jsonl then has the right verdicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import add_endpoint_options, command_parser, endpoint_settings, guarded, say

if TYPE_CHECKING:
    from vcap_jax.world.scenes import Scene


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path, help="of the study, with items.jsonl")
    addresses = "addresses of the judge, divided by commas; or embedded"
    add_endpoint_options(parser, "judge", addresses, required=True)
    parser.add_argument("--manifest", type=Path, help="of the pictures or videos that were captioned")
    parser.add_argument(
        "--captions", nargs="+", default=(), metavar="MODEL=FILE", help="make the items of these captions"
    )
    parser.add_argument("--items", type=int, help="how many, drawn from all (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of that draw (default: 0)")
    parser.add_argument(
        "--prompts", type=Path, help="folder with texts of your own, propose.txt or verify.txt"
    )
    parser.add_argument("settings", nargs="*", metavar="judge.key=value", help="how the judge is asked")
    args = parser.parse_intermixed_args(arguments)
    # What follows --captions is read as captions, settings as well.
    args.settings += [word for word in args.captions if word.startswith("judge.")]
    args.captions = [word for word in args.captions if not word.startswith("judge.")]
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)

    def work() -> None:
        from vcap_jax.configuration import load_config
        from vcap_jax.data.manifest import read_manifest
        from vcap_jax.evals.asking import Asker, with_store
        from vcap_jax.human_eval.embedded import TRUTH, propose_from_facts
        from vcap_jax.human_eval.errors import StudyError
        from vcap_jax.human_eval.propose import propose_for, stages, summary
        from vcap_jax.human_eval.records import write_rows
        from vcap_jax.human_eval.study import (
            ANSWERS,
            ITEMS,
            PROPOSITIONS,
            check_media,
            check_video,
            read_items,
        )
        from vcap_jax.report.summary import write_summary
        from vcap_jax.reward.config import JudgeConfig

        folder: Path = args.folder
        if (folder / ANSWERS).exists():
            raise StudyError(
                f"{folder / ANSWERS} is there: people have begun with this study, or the folder is not one, as that of "
                "an evaluation by vcap evaluate. New propositions need a new folder"
            )
        scenes = _scenes(args) if args.judge == "embedded" else None
        if args.captions:
            _gather(args)
        items = read_items(folder / ITEMS)
        for item in items.values():  # what people cannot be shown need not be asked about
            check_media(folder, item)
            check_video(folder, item)
        if scenes is not None:
            files = {sample.id: sample.files[0] for sample in read_manifest(args.manifest)}
            made = propose_from_facts(folder, items.values(), scenes, files, seed=args.seed)
            count, truth = len(made.propositions), folder / TRUTH
            print(f"{count} propositions by the scenes' facts; {truth} has the verdicts")
            return
        asked = stages(args.prompts)
        words = [word.removeprefix("judge.") for word in [*endpoint_settings(args, "judge"), *args.settings]]
        judge = with_store(load_config(JudgeConfig, (), words), str(folder / "judgements.sqlite"))
        with Asker({"judge": judge}, say=say) as asker:
            found = asker.each(
                items.values(),
                lambda item: propose_for(asker, asked, folder, item),
                what="items",
                total=len(items),
            )
            reports = {name: report.row() for name, report in asker.report().items()}
            models = dict(asker.models)
        pairs = [pair for item in found for pair in item]
        write_rows(folder / PROPOSITIONS, (one for pair in pairs for one in pair.kept))
        if (folder / TRUTH).exists():  # of the embedded judge's propositions, which these replace
            (folder / TRUTH).unlink()
            print(f"{folder / TRUTH} is removed: it was of propositions that are replaced")
        write_rows(folder / "rejected.jsonl", (one for pair in pairs for one in pair.rejected))
        failed = [pair for pair in pairs if pair.failure is not None]
        told = [f"{p.item}, {p.model} against {p.ref_model}: {p.failure}" for p in failed]
        counts = summary(pairs)
        write_summary(
            folder / "propose.json", {"judge": models, **counts, "stages": reports, "failures": told}
        )
        print(f"{counts['kept']} kept, {counts['rejected']} rejected, of {len(pairs)} pairs of captions")
        if failed:
            raise StudyError(
                f"{len(failed)} of {len(pairs)} pairs have no propositions ({told[0]}): the same command asks again; "
                f"all are in {folder / 'propose.json'}"
            )

    return guarded(work)


def _gather(args: argparse.Namespace) -> None:
    from vcap_jax.human_eval.errors import StudyError
    from vcap_jax.human_eval.gather import gather

    if args.manifest is None:
        raise StudyError("--captions are of a manifest's pictures: give it with --manifest")
    captions: dict[str, Path] = {}
    for word in args.captions:
        model, equals, path = word.partition("=")
        if not equals or not model or model in captions:
            raise StudyError(f"--captions {word!r}: give MODEL=FILE, each model once")
        captions[model] = Path(path)
    items = gather(args.folder, args.manifest, captions, count=args.items, seed=args.seed, say=say)
    print(f"{len(items)} items of {', '.join(captions)} in {args.folder / 'items.jsonl'}")


def _scenes(args: argparse.Namespace) -> Mapping[str, Scene]:
    from vcap_jax.human_eval.errors import StudyError
    from vcap_jax.world.dataset import SCENES, read_scenes

    if args.manifest is None:
        raise StudyError("the scenes' facts stand beside their manifest: give it with --manifest")
    folder: Path = args.manifest.parent
    if not (folder / SCENES).exists():
        raise StudyError(
            f"there is no {SCENES} beside {args.manifest}, with the facts that --judge embedded goes by: give a "
            "manifest of the embedded world (RUN/data/heldout/manifest.jsonl), or the address of a judge"
        )
    return read_scenes(folder)
