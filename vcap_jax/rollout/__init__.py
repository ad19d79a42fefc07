"""Drawing G captions per prompt: the sampling rules and the engines that apply them."""
