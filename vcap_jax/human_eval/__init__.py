"""People's verdicts on captions: propositions, the annotation application, agreement."""
