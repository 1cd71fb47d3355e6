"""What is put around plugins and the parts of the line: guards, durations, spans."""
