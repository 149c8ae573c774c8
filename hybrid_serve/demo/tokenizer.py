"""The byte-level BPE tokenizer of the pair: trained on the corpus, digits one by one, with a chat template."""

import json
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from hybrid_serve.demo.corpus import documents
from hybrid_serve.demo.geometry import END_OF_TEXT, IM_END, SPECIAL_TOKENS, TARGET_DIR

SEED = 20_000  # apart from the seeds that training uses

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def train_tokenizer(vocab_size: int, sample: int = 6000) -> Tokenizer:
    """Train on the first `sample` documents; special tokens get the ids 0, 1, 2 and 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("".join(piece.text for piece in document) for document in islice(documents(SEED), sample))
    tokenizer.train_from_iterator((part for text in texts for part in split_specials(text)), trainer)
    return tokenizer


def split_specials(text: str) -> list[str]:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\0")
    return [part for part in text.split("\0") if part]


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write what transformers and vLLM read: the tokenizer, its config, the chat template, the stop tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[IM_END],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "mask_token": "<|mask|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    generation = {"eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TARGET_DIR / "tokenizer.json"))
