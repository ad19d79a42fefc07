"""The commands: a module each, with ``main(arguments)`` that returns the exit status.

``vcap NAME`` (``vcap_jax.commands.vcap``) and ``python launch/NAME.py`` are the same programs. A command is a module of
this folder and a line of ``COMMANDS``; nothing is imported but the command that is called.
"""

COMMANDS = {
    "train": "train a captioner by GRPO on the witness-adjudicator reward",
    "sft": "fine-tune a captioner on captions",
    "distill": "fine-tune on the best of N captions of each teacher",
    "self-improve": "train round after round, each on references by the round before",
    "caption": "caption pictures and clips by any checkpoint or served model",
    "references": "write the references that a run learns from, by any captioner",
    "evaluate": "caption and score by public benchmarks",
    "compare": "lay results of several captioners side by side",
    "runs": "lay runs side by side, several seeds as mean and range",
    "convert": "turn a run or checkpoint into a Hugging Face folder, and back",
    "propose": "have a judge list what captions miss or get wrong",
    "annotate": "let people judge and rank captions in the browser",
    "agreement": "tables and figure of what people said, and of the reward",
    "score": "score captions that are there already by the reward",
    "restudy": "compute rewards anew from stored judgements, with other weights",
    "plan": "compile a run for hardware that is not there: memory and speed",
    "target": "print what is known of a hardware target",
    "preflight": "check a run's settings, data and memory before it starts",
    "serve-rollout": "start a vLLM server that draws captions for training",
    "probe": "say what a policy of the embedded world sees, and what it says",
    "reproduce": "put the paper's claims to the test in the embedded world",
    "theory": "draw the landscape of the reward",
}
"""What ``vcap --help`` lists: each command and what it does. The module has the same name, with _ for -."""
