"""Small models that each do one thing which a trace may lose, trained in several layouts against a plain loop."""
