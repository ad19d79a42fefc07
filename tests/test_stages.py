"""What a run may be resumed with that it was not begun with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.config import RunConfig
from vcap_jax.configuration import load_config
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.stages import MAY_DIFFER


@pytest.mark.parametrize(
    ("setting", "free"),
    [
        ("compilation_cache=elsewhere", True),
        ("data.threads=7", True),
        ("data.prefetch=3", True),
        ("logging.print_every=9", True),
        ("alarms.duplicates=null", True),
        ("data.max_pixels=4096", False),
        ("data.on_bad_sample=refuse", False),
        ("seed=1", False),
    ],
)
def test_what_changes_no_result_may_change(tmp_path: Path, setting: str, free: bool) -> None:
    RunFolder.open(tmp_path / "run", RunConfig(), may_differ=MAY_DIFFER)
    changed = load_config(RunConfig, [], [setting])
    if free:
        assert RunFolder.open(tmp_path / "run", changed, resume=True, may_differ=MAY_DIFFER).resumed
    else:
        with pytest.raises(RunFolderError, match=setting.split("=")[0]):
            RunFolder.open(tmp_path / "run", changed, resume=True, may_differ=MAY_DIFFER)
