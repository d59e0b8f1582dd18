// What a report does beyond being read: sorting, searching, zooming, copying, colors. Everything
// is in the page already; without this script the tables, trees and pictures remain.

import { startTheme, themeButton } from "../shared/theme";
import { copyButtons } from "./code";
import { startContents } from "./contents";
import { startFlames } from "../shared/flame";
import { openTargets } from "./open";
import { startPictures } from "./pictures";
import { startSearches } from "./search";
import { focusableBoxes, sortableTables } from "./tables";

startTheme();
document.documentElement.classList.add("scripted");
startContents(themeButton());
sortableTables();
startSearches();
startFlames();
startPictures();
copyButtons();
openTargets();
focusableBoxes();
