r"""Evaluates captions by public benchmarks: captions first, then scores. Started again, it goes on where it stopped.

    python launch/evaluate.py --benchmark capmas --by runs/mine --data /data/capmas --judge http://127.0.0.1:8000
    python launch/evaluate.py --benchmark capmas,decapbench --by /models/Qwen3-VL-8B-Instruct --data /data/benchmarks \
        --judge http://a:8000,http://b:8000 --out results/qwen3-vl-8b
    python launch/evaluate.py --benchmark vcapsbench --by http://127.0.0.1:8100 --data /data/vcapsbench \
        --judge http://127.0.0.1:8000 --reasoner http://127.0.0.1:8001
    python launch/evaluate.py --benchmark capmas --by captions.json --data /data/capmas \
        --judge https://api.openai.com --judge-model gpt-4o --judge-key-env OPENAI_API_KEY
    PYTHONPATH=. python launch/evaluate.py --benchmark my_evaluation:Mentions --by runs/mine \
        options.manifest=heldout.jsonl

Settings that follow: judge.* and reasoner.* say how these are asked (concurrency, deadlines, tries), options.* what a
benchmark is asked for (docs/evaluate.md), captioner.* how a served captioner is asked, and all others are the
captioner's own (rollout.max_completion_length=1024, data.max_frames=64). Captions are greedy unless --temperature is
given. video-qa has lmms-eval ask a served checkpoint. Which benchmarks there are, where their files come from and what
each measures: docs/evaluate.md. Evaluators of your own: docs/add_an_evaluation.md.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import (
    add_captioner_options,
    add_endpoint_options,
    command_parser,
    endpoint_settings,
    guarded,
    say,
    seed_argument,
    temperature_argument,
)

VIDEO_QA = "video-qa"
"""The benchmark that another harness does (``vcap_jax.recipes.video_qa``)."""
_NOT_OF_THE_HARNESS = re.compile(r"reasoner\.|judge\.(?!(urls|model|api_key_env|ready_timeout_s)=)")
"""How a judge is asked that the harness asks in a way of its own."""


def parse_arguments(arguments: Sequence[str] | None = None) -> Namespace:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--benchmark", required=True, help="names, divided by commas; or package.module:Class of your own"
    )
    add_captioner_options(
        parser,
        "who captions: a run's folder, a Hugging Face folder, an Orbax checkpoint, the http address of a chat "
        "endpoint; or a file of captions",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the benchmark's files, or with a folder NAME for each; of your own evaluator options.data",
    )
    add_endpoint_options(parser, "judge", "addresses of the judge, divided by commas")
    add_endpoint_options(parser, "reasoner", "addresses of who answers from text (default: the judge)")
    parser.add_argument("--out", type=Path, help="where results go (default: results/BY)")
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="try again what failed in an evaluation that is complete; captions and answers stay",
    )
    parser.add_argument("--mode", choices=("official", "strict"), help="of counting (default: strict)")
    parser.add_argument("--prompts", help="folder with texts of your own, BENCHMARK/STAGE.txt or STAGE.txt")
    parser.add_argument(
        "--limit", type=int, help="the first so many pictures or videos (of video-qa: questions)"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="of a run that is going on: evaluate every checkpoint as it comes, into its evaluations/, until it ends",
    )
    parser.add_argument(
        "--temperature",
        type=temperature_argument,
        help="draws captions (default: the likeliest token each time)",
    )
    parser.add_argument("--seed", type=seed_argument, default=0, help="of the draws (default: 0)")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(arguments)


def settings_of(args: Namespace) -> list[str]:
    """The options of the command line as settings, before those that were written as such."""
    given = {option: getattr(args, option) for option in ("mode", "prompts", "limit")}
    options = [f"options.{option}={value}" for option, value in given.items() if value is not None]
    asked = [*endpoint_settings(args, "judge"), *endpoint_settings(args, "reasoner")]
    return [*asked, *options, *args.overrides]


def default_out(by: str) -> Path:
    """results/ and the last part of the captioner's name."""
    return Path("results") / (re.sub(r"[^A-Za-z0-9._-]+", "-", by.rstrip("/").split("/")[-1]) or "captions")


def _refused_by_the_harness(args: Namespace, names: Sequence[str], captioner: Sequence[str]) -> str:
    """Why lmms-eval cannot do what was asked for; "" if it can. captioner: its settings, which it is not told."""
    if len(names) > 1:
        return f"{VIDEO_QA} is another program's work and has settings of its own: ask for it alone"
    if args.retry_failed:
        return (
            f"--retry-failed: the harness of {VIDEO_QA} asks all or nothing: name another --out to ask anew"
        )
    given = {"--reasoner": args.reasoner, "--step": args.step, "--temperature": args.temperature}
    unheard = [name for name, value in given.items() if value is not None]
    unheard += [*(["--seed"] if args.seed else []), *captioner]
    unheard += [word for word in args.overrides if _NOT_OF_THE_HARNESS.match(word)]
    if not unheard:
        return ""
    return (
        f"{unheard[0]} would change nothing: {VIDEO_QA} has lmms-eval ask a served model. Leave it out; "
        "frames and lengths are options.max_frames, options.max_pixels and options.max_new_tokens"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)

    def work() -> None:
        from vcap_jax.recipes.evaluate import evaluate
        from vcap_jax.recipes.evaluation_request import EvaluationRefused, EvaluationRequest, split_settings

        judges, options, captioner = split_settings(settings_of(args))
        names = tuple(dict.fromkeys(name.strip() for name in args.benchmark.split(",")))
        out = args.out or default_out(args.by)
        own = any(":" in name for name in names)
        if own and (len(names) > 1 or args.follow):
            raise EvaluationRefused(
                "an evaluator of your own is asked for alone, and without --follow: while a run goes on its "
                "evaluation.evaluators evaluates"
            )
        if args.data is None and not own:
            raise EvaluationRefused("--data is needed: the folder with the benchmark's files")
        if args.follow and (args.out is not None or args.step is not None or VIDEO_QA in names):
            raise EvaluationRefused(
                f"--follow takes every step of the run into its folder: no --out, --step, {VIDEO_QA}"
            )
        if VIDEO_QA in names:
            from vcap_jax.recipes.video_qa import VideoQaRequest, evaluate_video_qa

            if wrong := _refused_by_the_harness(args, names, captioner):
                raise EvaluationRefused(wrong)
            data = args.data / VIDEO_QA if (args.data / VIDEO_QA).is_dir() else args.data
            asked = VideoQaRequest(
                by=args.by,
                out=out,
                options={**options, "data": str(data)},
                judge=judges.judge,
                served_model=args.served_model,
                api_key_env=args.api_key_env,
            )
            evaluate_video_qa(asked, say)
            return
        request = EvaluationRequest(
            benchmarks=names,
            by=args.by,
            data=args.data or Path(),
            out=out,
            judges=judges,
            options={"data": str(args.data), **options} if own and args.data is not None else options,
            step=args.step,
            captioner=captioner,
            served_model=args.served_model,
            api_key_env=args.api_key_env,
            temperature=args.temperature,
            seed=args.seed,
            retry_failed=args.retry_failed,
        )
        if own:
            from vcap_jax.recipes.evaluate_own import evaluate_own

            evaluate_own(request, say)
        elif args.follow:
            from vcap_jax.recipes.follow import follow

            follow(request, say)
        else:
            evaluate(request, say)

    return guarded(work)
