"""Runs that earlier versions have stored, and the job that they trained."""
