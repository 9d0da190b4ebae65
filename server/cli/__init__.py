"""The `octavo` command. Its modules import nothing heavy at the top, so that help is quick."""
