"""The parts of a job, which are checked before anything starts: model, loss, samples and collated batches."""
