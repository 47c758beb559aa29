"""Functions of `import bench`, for scripts and notebooks."""
