"""Endpoints of the laboratory: services of providers, written from the models of their own SDKs."""
