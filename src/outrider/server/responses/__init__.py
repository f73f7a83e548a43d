"""POST /v1/responses: OpenAI's newer form of a conversation. Nothing is stored: every request brings all of it."""
