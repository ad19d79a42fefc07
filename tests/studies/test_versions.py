"""What results are known to depend on."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from vcap_jax.studies import versions


def test_the_world_is_known_by_its_scenes_words_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the three changes, it is another world."""
    digest = versions.world_digest.__wrapped__
    found = {digest(), digest()}
    assert len(found) == 1
    scene, caption, count = versions.sample_scene, versions.full_caption, versions.count_facts
    changes = {
        "sample_scene": lambda modality, seed, index, split: scene(modality, seed + 1, index, split),
        "full_caption": lambda of, rng: caption(of, rng) + " ",
        "count_facts": lambda of, text: dataclasses.replace(count(of, text), claims=0),
    }
    for name, changed in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(versions, name, changed)
            found.add(digest())
    assert len(found) == 1 + len(changes)


def test_the_code_is_named_by_its_commit_in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    version = versions.code_version.__wrapped__
    package = tmp_path / "clone" / "vcap_jax" / "studies"
    package.mkdir(parents=True)
    (package / "versions.py").write_text("")
    monkeypatch.setattr(versions, "__file__", str(package / "versions.py"))
    told = version()
    assert "VCap-JAX" in told
    assert " at " not in told

    def git(*arguments: str) -> str:
        as_someone = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        done = subprocess.run(
            ["git", "-C", tmp_path / "clone", *as_someone, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    commit = git("rev-parse", "--short=7", "HEAD")
    assert version() == f"{told} at {commit}"
    (package / "versions.py").write_text("changed")
    assert version() == f"{told} at {commit}+"
