"""Parsers of whole answers with tool calls, one for each way in which models write them."""
