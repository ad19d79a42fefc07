"""benchmarks/small_policy.py: what a checkpoint of published shapes is filled with."""

import json

from tokenizers import Tokenizer

from benchmarks.small_policy import fill_vocabulary, policy_config, published_shapes
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.world.tokenizer import train_tokenizer, training_texts


def test_made_up_words_fill_the_vocabulary_and_change_no_encoding(tmp_path):
    tokenizer = train_tokenizer(training_texts())
    tokenizer.save_pretrained(tmp_path)
    file, size = tmp_path / "tokenizer.json", len(tokenizer) + 5000
    texts = [*training_texts()[:20], "Something zebraish, quite unlike it: 17 xylophones!"]
    before = [tokenizer.encode(text) for text in texts]
    fill_vocabulary(file, size)
    filled = Tokenizer.from_file(str(file))
    assert filled.get_vocab_size() == size
    assert sorted(filled.get_vocab().values()) == list(range(size))
    assert [filled.encode(text).ids for text in texts] == before
    words = [filled.decode([token]) for token in range(len(tokenizer), size)]
    assert len(set(words)) == len(words)
    assert all(word.strip().isalpha() for word in words)


def test_published_shapes_have_the_special_tokens_of_the_tokenizer():
    ours = policy_config(train_tokenizer(training_texts()))
    config = published_shapes("2B", ours)
    assert config["image_token_id"] == ours["image_token_id"]
    assert config["text_config"]["eos_token_id"] == ours["text_config"]["eos_token_id"]
    text = Qwen3VLConfig.from_dict(json.loads(json.dumps(config))).text
    assert (text.vocab_size, text.hidden_size, text.num_hidden_layers) == (151936, 2048, 28)
