"""The exit codes of all commands of the load generator."""

VALID = 0
USAGE = 1
OBJECTIVE_MISSED = 2
LOAD_INVALID = 3
SERVER_UNUSABLE = 4
INTERRUPTED = 130
BROKEN_PIPE = 141  # as a shell says of a program that SIGPIPE ended

EPILOG = (
    "exit code: 0 the load was valid, 1 wrong usage, 2 the objective was missed under --assert, "
    "3 LOAD_INVALID: what was sent is not what was asked for, 4 the server cannot be used"
)
