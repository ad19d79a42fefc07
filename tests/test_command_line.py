"""What every command does around its own work: what is logged is shown, and errors a user can mend have no trace."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from vcap_jax.command_line import config_parser, run_command
from vcap_jax.config import RunConfig
from vcap_jax.qwen3_vl.attention import UnsupportedAttention

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    return config_parser("A command.").parse_args(
        ["--config", str(ROOT / "configs" / "embedded" / "image.yaml"), "compilation_cache=null"]
    )


def test_what_is_logged_is_shown_once_and_only_meanwhile(capsys) -> None:
    logger = logging.getLogger("vcap_jax.somewhere")

    def command(config: RunConfig) -> int:
        logger.info("attention: native")
        logger.warning("a remedy")
        return 0

    assert run_command(arguments(), command) == 0
    assert capsys.readouterr().err == "attention: native\na remedy\n"
    logger.info("nobody listens")
    assert "nobody listens" not in capsys.readouterr().err


def test_attention_that_cannot_be_had_is_an_error_without_a_trace(capsys) -> None:
    def command(config: RunConfig) -> int:
        raise UnsupportedAttention("install a compiler")

    assert run_command(arguments(), command) != 0
    err = capsys.readouterr().err
    assert "error: install a compiler" in err
    assert "Traceback" not in err


def test_other_errors_keep_their_trace() -> None:
    def command(config: RunConfig) -> int:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        run_command(arguments(), command)
