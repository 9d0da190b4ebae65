"""The exit codes of all commands of the load generator."""

VALID = 0
USAGE = 1
OBJECTIVE_MISSED = 2
LOAD_INVALID = 3
SERVER_UNUSABLE = 4
INTERRUPTED = 130

EPILOG = "exit code: 0 valid, 1 usage, 2 objective missed under --assert, 3 LOAD_INVALID, 4 server unusable"
