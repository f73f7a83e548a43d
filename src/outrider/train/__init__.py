"""Training drafters: the target writes its own data (writer, prompts, corpus), then a head or a small model learns."""
