"""What a user who has trained does next: the page to look at, and the commands that use the run."""

from __future__ import annotations

from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.command_line import other_command


def next_steps(folder: RunFolder) -> str:
    """A line for each: what to look at, how to caption with the run, how to export it."""
    root = str(folder.root)
    pages = (folder.before_after_page("judged"), folder.samples_page, folder.plots)
    page = next((page for page in pages if page.exists()), folder.summary)
    return "\n".join(
        [
            f"look at:  {page}",
            f"caption:  {other_command('caption', '--by', root)} PICTURE",
            f"export:   {other_command('convert', 'to-hf', root, 'exported')}",
        ]
    )
