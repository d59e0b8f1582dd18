// Where the page of `gpusight serve` begins. The theme is shown before anything is drawn.

import { startTheme } from "../shared/theme";
import { Page } from "./app/page";

startTheme();
document.addEventListener("DOMContentLoaded", () => new Page().start());
