"""What ``bench doctor`` checks on a machine, each check in a process of its own, and a simulated GPU to check it on."""
