"""`octavo chat`: a conversation in the terminal with any server that has the OpenAI chat API."""
