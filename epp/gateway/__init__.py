"""Envoy's side: bootstraps that ask the picker."""
