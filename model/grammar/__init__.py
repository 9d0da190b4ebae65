"""Output that matches a JSON schema, a regular expression or a grammar: compiled by llguidance."""
