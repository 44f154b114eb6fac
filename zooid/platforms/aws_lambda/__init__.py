"""Members with AWS Lambda, as functions or in MicroVMs."""
