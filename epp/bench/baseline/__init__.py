"""Other servers that gateways could ask, to measure beside the picker."""
