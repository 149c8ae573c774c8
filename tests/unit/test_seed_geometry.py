"""The pair with the seed's geometry: its tokenizer has text for every id that the model can give."""

from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.seed_geometry import SPECIAL, VOCABULARY, write_tokenizer


def test_every_token_of_the_model_has_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == VOCABULARY
    texts = [tokenizer.decode([token]) for token in range(len(SPECIAL), VOCABULARY)]
    assert all(texts)
    assert tokenizer.decode(tokenizer.encode("the quick brown fox")) == "the quick brown fox"
