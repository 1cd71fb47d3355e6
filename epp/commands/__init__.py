"""What the verbs of the command line run, beside `serve`."""
