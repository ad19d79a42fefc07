"""The paper's claims put to the test in the embedded world: studies, runs, verdicts and one report of it all."""
