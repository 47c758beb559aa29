"""Planning: a request becomes plans, with settings merged from layers into specifications with ids."""
