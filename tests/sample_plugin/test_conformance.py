from checkmate.testing import SolverConformance


class TestLuck(SolverConformance):
    solver_name = "luck"
