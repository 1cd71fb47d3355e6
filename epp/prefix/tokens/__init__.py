"""Who tells a prompt's token ids: an engine, a render service, or a tokenizer in this process."""
