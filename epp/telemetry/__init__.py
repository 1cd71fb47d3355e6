"""What an operator sees of the picker: metrics, logs, the admin port."""
