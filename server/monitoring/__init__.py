"""What is told about the running server: Prometheus metrics and the live page's data."""
