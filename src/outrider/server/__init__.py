"""The HTTP server: OpenAI's protocol in front of one engine. Needs the extra: pip install "outrider[serve]"."""
