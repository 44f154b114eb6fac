"""Everything that training changes: parameters, buffers, optimizer and loss scale."""
