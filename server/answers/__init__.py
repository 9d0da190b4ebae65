"""What answers look like: the objects of whole ones and the events of streamed ones."""
